"""Maps learned from sentence vectors alone: whitening, BERT-flow, removal of dominant directions."""
