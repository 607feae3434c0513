"""Options of objectives: their types, what they change, and which combinations are refused and why."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import DOCUMENTS, LONG_DOCUMENTS, PAIRS, SINGLES, TRIPLETS, batch_of, build

from helpers import SENTENCES
from simcse_cli.choices import DropoutMode, HeadUse, Pooler, Similarity
from simcse_cli.choices import ObjectiveName as Name
from simcse_cli.config import TrainConfig
from simcse_cli.data.training_file import TrainingDocuments
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.models.heads import MlpHead
from simcse_cli.objectives.quick_thoughts import QuickThoughts
from simcse_cli.objectives.registry import OBJECTIVES, build_objective, coerce_option
from simcse_cli.training.setup import check_settings


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [(float, "1e-5", 1e-5), (int, 64.0, 64), (bool, True, True), (str, "second", "second")],
)
def test_coerce_option_accepts_spellings_of_yaml(kind, given, expected):
    assert coerce_option("x", given, kind) == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (Name.VICREG, {"projector_dim": 1.5}, "need a whole number"),
        (Name.VICREG, {"variance_weight": "much"}, "need a number"),
        (Name.VICREG, {"variance_weight": -1}, "need 0 or more"),
        (Name.BARLOW_TWINS, {"redundancy_weigth": 1}, "no such option"),
        (Name.BARLOW_TWINS, {"projector_dim": 1}, "at least 2"),
        (Name.SIMCSE_UNSUP, {"symmetric": "yes"}, "true or false"),
        (Name.SIMCSE_UNSUP, {"matryoshka_dims": [64]}, "64 is not between 1 and"),
        (Name.SIMCSE_UNSUP, {"serve_encoder": "third"}, "need one of first, second"),
        (Name.SIMCSE_UNSUP, {"serve_encoder": "second"}, "there is one encoder"),
        (Name.SIMCSE_UNSUP, {"augment_both": True}, "nothing augments"),
        (Name.SIMCSE_UNSUP, {"mlm_weight": -0.1}, "need 0 or more"),
        (Name.SIMCSE_UNSUP, {"mlm_weight": 0.1, "mlm_probability": 1.5}, "between 0 and 1"),
        (Name.NEXT_SENTENCE, {"window": 0}, "at least 1"),
        (Name.CT, {"n_negatives": 0}, "at least 1"),
        (Name.DECLUTR, {"min_span": 40, "max_span": 30}, "min_span below max_span"),
    ],
)
def test_build_objective_refuses_bad_options(name, options, message, tiny_encoder):
    with pytest.raises(ConfigError, match=message):
        build_objective(name, tiny_encoder, {}, options)


def test_build_objective_names_the_nearest_option(tiny_encoder):
    with pytest.raises(ConfigError) as caught:
        build_objective(Name.BARLOW_TWINS, tiny_encoder, {}, {"redundancy_weigth": 1})
    assert caught.value.hint == "did you mean redundancy_weight?"


def test_build_objective_sends_common_settings_to_their_flags(tiny_encoder):
    with pytest.raises(ConfigError, match="no option of the objective"):
        build_objective(Name.SIMCSE_UNSUP, tiny_encoder, {"temperature": 0.05}, {"temperature": 0.1})


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        (Name.VICREG, {"temperature": 0.1}, "--temperature 0.1.*its loss has no temperature"),
        (Name.CT, {"similarity": Similarity.DOT}, "--similarity dot.*in one way only"),
        (Name.SIMCSE_UNSUP, {"hard_negative_alpha": 2.0}, "--hard-neg-alpha 2.0.*no hard negatives"),
        (Name.QUICK_THOUGHTS, {"augment": "delete:0.1"}, "--augment delete:0.1.*its own pairs"),
        (Name.SBERT, {"dropout_mode": DropoutMode.FIXED}, "--dropout-mode fixed.*no mask to share"),
    ],
)
def test_check_settings_refuses_what_would_be_ignored(name, setting, reason):
    with pytest.raises(ConfigError, match=reason):
        check_settings(TrainConfig(objective=name, **setting))


@pytest.mark.parametrize("name", list(Name))
def test_check_settings_accepts_the_defaults_and_no_dropout(name):
    check_settings(TrainConfig(objective=name))
    check_settings(TrainConfig(objective=name, dropout_mode=DropoutMode.NONE))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (Name.SIMCSE_UNSUP, {"augment": str.upper}, "they have different texts"),
        (Name.SIMCSE_UNSUP, {"dual_encoder": True}, "two encoders give two vectors"),
        (Name.VICREG, {"projector_dim": 8}, "one vector always agrees with itself"),
    ],
)
def test_fixed_dropout_is_refused_where_views_must_differ(name, settings, message, tiny_encoder):
    with pytest.raises(ConfigError, match=message):
        build_objective(name, tiny_encoder, settings | {"dropout_mode": DropoutMode.FIXED}, {})


def test_fixed_dropout_is_refused_for_pairs(tiny_encoder):
    objective = build_objective(Name.SIMCSE_UNSUP, tiny_encoder, {"dropout_mode": DropoutMode.FIXED}, {})
    with pytest.raises(ConfigError, match="these have different texts"):
        objective.examples(PAIRS, np.random.default_rng(0))


def test_fixed_dropout_encodes_once_and_leaves_only_negatives(tiny_encoder):
    objective = build_objective(Name.SIMCSE_UNSUP, tiny_encoder, {"dropout_mode": DropoutMode.FIXED}, {})
    batch = batch_of(objective, SINGLES)
    assert len(batch.rows) == batch.n_examples
    (vectors,) = objective.encode(batch)
    (loss,) = objective.losses((vectors,), batch)[0].values()
    assert loss.item() == pytest.approx(info_nce(vectors, vectors, temperature=0.05).item())


def test_matryoshka_is_the_mean_over_leading_columns(tiny_model_dir):
    plain, data = build("simcse-sup", tiny_model_dir)
    nested, _ = build("simcse-sup", tiny_model_dir, matryoshka_dims="8,16")
    batch = batch_of(plain, data)
    vectors = torch.randn(24, 32, generator=torch.Generator().manual_seed(0))
    values = [plain.contrast([view[:, :width] for view in vectors.view(3, 8, 32)]) for width in (8, 16, 32)]
    loss = nested.losses((vectors,), batch)[0]["contrastive"]
    torch.testing.assert_close(loss, torch.stack(values).mean())


def test_second_encoder_starts_equal_and_encodes_the_later_views(tiny_model_dir):
    objective, _ = build("simcse-sup", tiny_model_dir, dual_encoder=True, serve_encoder="second")
    objective.eval()
    for own, other in zip(objective.encoder.parameters(), objective.second.parameters(), strict=True):
        assert torch.equal(own, other)
        assert own is not other
    with torch.no_grad():
        for parameter in objective.second.parameters():
            parameter.mul_(1.1)
    batch = batch_of(objective, TRIPLETS)
    (vectors,) = objective.encode(batch)
    torch.testing.assert_close(
        vectors[:8], objective.encoder.embed_rows(batch.rows[:8]), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(vectors[8:], objective.second.embed_rows(batch.rows[8:]), atol=1e-5, rtol=1e-4)
    assert objective.eval_encoder() is objective.second
    assert objective.second.tokenizer is objective.encoder.tokenizer


def test_mlm_term_is_the_weighted_mean_over_masked_tokens(tiny_model_dir):
    objective, data = build("simcse-unsup", tiny_model_dir, mlm_weight=0.5)
    objective.eval()
    batch = batch_of(objective, data)
    plain, masked = batch.rows[:16], batch.rows[16:]
    labels = batch.extra["mlm_labels"]
    assert len(masked) == len(labels) == 16
    losses = []
    for row, targets, original in zip(masked, labels, plain, strict=True):
        _, states, _ = objective.encoder.embed_with_states([row])
        scores = torch.log_softmax(objective.mlm.head(states)[0], dim=1)
        for position, target in enumerate(targets):
            if target != -100:
                assert target == original[position]
                losses.append(-scores[position, target].item())
    term = objective(batch)[0]["mlm"].item()
    assert term == pytest.approx(0.5 * sum(losses) / len(losses), rel=1e-4)


def test_mlm_term_says_that_a_checkpoint_has_no_head(tiny_model_dir):
    objective, _ = build("simcse-unsup", tiny_model_dir, mlm_weight=0.1)
    assert "has no masked-LM head" in objective.warnings[0]


def test_simcse_on_documents_needs_two_sentences_in_one(tiny_encoder):
    objective = build_objective(Name.NEXT_SENTENCE, tiny_encoder, {}, {})
    with pytest.raises(DataError, match="no document has two sentences"):
        objective.examples(TrainingDocuments("d", [["a"], ["b"]], ""), np.random.default_rng(0))


def test_next_sentence_pairs_follow_each_other(tiny_encoder):
    objective = build_objective(Name.NEXT_SENTENCE, tiny_encoder, {}, {})
    pairs = objective.examples(DOCUMENTS, np.random.default_rng(0))
    assert len(pairs) == len(SENTENCES) - len(DOCUMENTS.documents)
    for anchor, positive in pairs:
        assert SENTENCES.index(positive) == SENTENCES.index(anchor) + 1


def test_quick_thoughts_neighbours_stay_within_their_document(tiny_encoder):
    objective = QuickThoughts(tiny_encoder)
    placed = objective.examples(DOCUMENTS, np.random.default_rng(0))
    places = [place for _, place in placed]
    neighbours = [b - a == 1 for a, b in pairwise(places)]
    assert [i + 1 for i, near in enumerate(neighbours) if not near] == [9, 12]


def test_declutr_says_how_long_documents_must_be(tiny_encoder):
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, {})
    with pytest.raises(DataError, match=r"longest of 12 documents has \d+ tokens, need 2048") as caught:
        objective.examples(LONG_DOCUMENTS, np.random.default_rng(0))
    assert "--set max_span=" in caught.value.hint


def test_declutr_rows_are_spans_of_the_document_and_fit_the_encoder(tiny_encoder):
    objective = build_objective(
        Name.DECLUTR, tiny_encoder, {}, {"max_span": 24, "min_span": 4, "mlm_weight": 0}
    )
    documents = objective.examples(LONG_DOCUMENTS, np.random.default_rng(0))
    batch = objective.collate(documents[:2], np.random.default_rng(0))
    assert (batch.n_examples, len(batch.rows)) == (4, 12)
    for i, row in enumerate(batch.rows):
        document = documents[(i % 4) // 2]
        starts = range(len(document) - len(row) + 3)
        assert any(document[start : start + len(row) - 2] == row[1:-1] for start in starts)
        assert len(row) <= tiny_encoder.max_length


def test_is_bert_serves_its_convolutions_and_refuses_other_poolers(tiny_encoder):
    objective = build_objective(Name.IS_BERT, tiny_encoder, {}, {"n_channels": 4})
    assert objective.eval_encoder().encode(["A man is playing a guitar."]).shape == (1, 12)
    tiny_encoder.pooler, tiny_encoder.head, tiny_encoder.head_use = Pooler.CLS, MlpHead(32), HeadUse.KEPT
    with pytest.raises(ConfigError, match="--pooler cls"):
        build_objective(Name.IS_BERT, tiny_encoder, {}, {})


def test_contrastive_tension_batches_hold_one_positive_to_k_negatives(tiny_encoder):
    objective = build_objective(Name.CT, tiny_encoder, {}, {"n_negatives": 3})
    examples = objective.examples(SINGLES, np.random.default_rng(0))
    assert len(examples) == 4 * len(SENTENCES)
    batch = objective.collate([examples[i] for i in range(8)], np.random.default_rng(0))
    assert batch.extra["is_positive"].tolist() == [True, False, False, False] * 2
    assert all((a == b) == positive for (a, b), positive in zip(batch.texts, [1, 0, 0, 0] * 2, strict=True))


def test_every_objective_states_what_it_changes_of_the_defaults():
    for name in Name:
        assert set(OBJECTIVES[name].defaults) <= set(TrainConfig.__dataclass_fields__)
