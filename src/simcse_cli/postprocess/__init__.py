"""Maps learned from sentence vectors: whitening, BERT-flow, removal of dominant directions."""
