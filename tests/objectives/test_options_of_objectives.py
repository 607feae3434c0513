"""Options of objectives: their types, what they change, and which combinations are refused and why."""

import itertools
import re

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from helpers import SENTENCES
from objectives.cases import DOCUMENTS, LONG_DOCUMENTS, PAIRS, SINGLES, TRIPLETS, batch_of, build
from simcse_cli.data.training_file import TrainingDocuments
from simcse_cli.errors import ConfigError, DataError, UsageError
from simcse_cli.losses.cosent import complex_score
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.models.heads import MlpHead
from simcse_cli.models.padding import pad
from simcse_cli.objectives.base import Batch
from simcse_cli.objectives.quick_thoughts import QuickThoughts
from simcse_cli.objectives.registry import (
    OBJECTIVES,
    build_objective,
    find_objective,
    objective_defaults,
)
from simcse_cli.settings.choices import (
    DropoutMode,
    Gather,
    HeadUse,
    Pooler,
    ServedEncoder,
    Similarity,
)
from simcse_cli.settings.choices import ObjectiveName as Name
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.declare import settings_of
from simcse_cli.settings.recipes import resolve_config
from simcse_cli.training.setup import check_settings


@pytest.mark.parametrize(
    ("name", "option", "given", "expected"),
    [
        (Name.SIMCSE_SUP, "unsup_weight", "1e-5", 1e-5),
        (Name.CT, "n_negatives", 3.0, 3),
        (Name.SIMCSE_UNSUP, "symmetric", True, True),
        (Name.CT, "serve_encoder", "second", ServedEncoder.SECOND),
        (Name.SIMCSE_UNSUP, "matryoshka_dims", "16,8", (16, 8)),
        (Name.SIMCSE_UNSUP, "matryoshka_dims", [16, 8], (16, 8)),
        (Name.SIMCSE_UNSUP, "matryoshka_dims", 16, (16,)),
    ],
)
def test_options_accept_the_spellings_of_yaml(name, option, given, expected, tiny_encoder):
    objective = build_objective(name, tiny_encoder, {}, {option: given})
    assert getattr(objective.options, option) == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (Name.VICREG, {"projector_dim": 1.5}, "need a whole number"),
        (Name.VICREG, {"variance_weight": "much"}, "need a finite number"),
        (Name.VICREG, {"variance_weight": -1}, "need at least 0"),
        (Name.BARLOW_TWINS, {"redundancy_weigth": 1}, "no such option"),
        (Name.BARLOW_TWINS, {"projector_dim": 1}, "at least 2"),
        (Name.SIMCSE_UNSUP, {"symmetric": "maybe"}, "true or false"),
        (Name.SIMCSE_UNSUP, {"matryoshka_dims": [64]}, "64 is not between 1 and"),
        (Name.SIMCSE_UNSUP, {"serve_encoder": "third"}, "need one of first, second"),
        (Name.SIMCSE_UNSUP, {"serve_encoder": "second"}, "there is one encoder"),
        (Name.SIMCSE_UNSUP, {"augment_both": True}, "nothing augments"),
        (Name.SIMCSE_UNSUP, {"mlm_weight": -0.1}, "--mlm-weight -0.1: need at least 0"),
        (Name.SIMCSE_UNSUP, {"mlm_weight": 0.1, "mlm_probability": 1.5}, "need a number below 1"),
        (Name.SIMCSE_UNSUP, {"mlm_weight": 0.1, "mlm_probability": 0}, "need a number above 0"),
        (Name.SIMCSE_UNSUP, {"mlm_weight": 0.1, "mlm_probability": 1}, "need a number below 1"),
        (Name.SIMCSE_UNSUP, {"matryoshka_dims": [0]}, "0 is not between 1 and"),
        (
            Name.SIMCSE_UNSUP,
            {"matryoshka_dims": [33]},
            "33 is not between 1 and the vector's width, 32",
        ),
        (Name.BARLOW_TWINS, {"redundancy_weight": -1}, "need at least 0"),
        (Name.DECLUTR, {"n_anchors": 0}, "n_anchors 0: need at least 1"),
        (Name.DECLUTR, {"n_positives": 0}, "n_positives 0: need at least 1"),
        (Name.DECLUTR, {"min_span": 0}, "min_span 0: need at least 1"),
        (Name.DECLUTR, {"min_span": 512}, "min_span below max_span"),
        (Name.SIMCSE_SUP, {"unsup_weight": -1}, "need at least 0"),
        (Name.NEXT_SENTENCE, {"window": 0}, "at least 1"),
        (Name.CT, {"n_negatives": 0}, "at least 1"),
        (Name.DECLUTR, {"min_span": 40, "max_span": 30}, "min_span below max_span"),
    ],
)
def test_build_objective_refuses_bad_options(name, options, message, tiny_encoder):
    with pytest.raises(ConfigError, match=message):
        build_objective(name, tiny_encoder, {}, options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (Name.CT, {"n_negatives": 1}),
        (Name.NEXT_SENTENCE, {"window": 1}),
        (Name.BARLOW_TWINS, {"projector_dim": 2, "redundancy_weight": 0}),
        (
            Name.VICREG,
            {
                "projector_dim": 2,
                "invariance_weight": 0,
                "variance_weight": 0,
                "covariance_weight": 0,
            },
        ),
        (Name.SIMCSE_UNSUP, {"matryoshka_dims": [1, 32], "mlm_weight": 0}),
        (Name.SIMCSE_UNSUP, {"mlm_weight": 1e-3, "mlm_probability": 0.999}),
        (Name.DECLUTR, {"n_anchors": 1, "n_positives": 1, "min_span": 1, "max_span": 2}),
    ],
)
def test_build_objective_accepts_options_at_their_limits(name, options, tiny_encoder):
    build_objective(name, tiny_encoder, {}, options)


@pytest.mark.parametrize(
    ("name", "rows", "options"),
    [
        (Name.SBERT, [(*pair, "neutral") for pair in PAIRS.rows], {}),
        (Name.VICREG, PAIRS.rows, {"projector_dim": 8}),
        (Name.BARLOW_TWINS, PAIRS.rows, {"projector_dim": 8}),
    ],
)
def test_layers_over_the_vectors_have_the_width_of_a_kept_head(name, rows, options, tiny_encoder):
    tiny_encoder.change(head=MlpHead(32, out_dim=12), head_use=HeadUse.KEPT)
    objective = build_objective(name, tiny_encoder, {}, options).train()
    terms, _ = objective(objective.collate(rows[:4], np.random.default_rng(0)))
    assert all(term.isfinite() for term in terms.values())


def test_build_objective_names_the_nearest_option(tiny_encoder):
    with pytest.raises(ConfigError) as caught:
        build_objective(Name.BARLOW_TWINS, tiny_encoder, {}, {"redundancy_weigth": 1})
    assert caught.value.hint == "did you mean redundancy_weight?"
    with pytest.raises(ConfigError) as caught:
        build_objective(Name.BARLOW_TWINS, tiny_encoder, {}, {"weight": 1})
    assert caught.value.hint == "did you mean redundancy_weight?"
    with pytest.raises(ConfigError) as caught:
        build_objective(Name.SBERT, tiny_encoder, {}, {"zzz": 1})
    assert caught.value.hint == "it has: max_length"


def test_build_objective_sends_common_settings_to_their_flags(tiny_encoder):
    with pytest.raises(ConfigError, match="no option of the objective"):
        build_objective(
            Name.SIMCSE_UNSUP, tiny_encoder, {"temperature": 0.05}, {"temperature": 0.1}
        )


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        (Name.VICREG, {"temperature": 0.1}, "--temperature 0.1.*its loss has no temperature"),
        (Name.CT, {"similarity": Similarity.DOT}, "--similarity dot.*in one way only"),
        (
            Name.SIMCSE_UNSUP,
            {"hard_negative_alpha": 2.0},
            "--hard-neg-alpha 2.0.*no hard negatives",
        ),
        (Name.QUICK_THOUGHTS, {"augment": "delete:0.1"}, "--augment delete:0.1.*its own pairs"),
        (Name.SBERT, {"dropout_mode": DropoutMode.FIXED}, "--dropout-mode fixed.*no mask to share"),
        (Name.DECLUTR, {"gather": Gather.ORIGINAL}, "--gather original.*one form"),
        (Name.VICREG, {"gather": Gather.ORIGINAL}, "--gather original.*one form"),
        (Name.QUICK_THOUGHTS, {"bucket_batches": 4}, "--bucket-batches 4.*keep their order"),
    ],
)
def test_check_settings_refuses_what_would_be_ignored(name, setting, reason):
    with pytest.raises(ConfigError, match=reason):
        check_settings(TrainConfig(objective=name, **setting))


@pytest.mark.parametrize("settings", [{"patience": 3}, {"dev_metric": "pearson"}])
def test_check_settings_refuses_what_needs_a_dev_score_without_one(settings):
    with pytest.raises(UsageError, match="no use without a dev score"):
        check_settings(TrainConfig(**settings))
    check_settings(TrainConfig(dev_file="pairs.csv", **settings))


@pytest.mark.parametrize("name", list(Name))
def test_help_shows_the_defaults_of_the_objective(name):
    objective = find_objective(name)
    for option, (field, _) in settings_of(objective.Options).items():
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        assert default == objective.defaults.get(option, default)


@pytest.mark.parametrize("name", list(Name))
def test_check_settings_accepts_the_defaults_and_no_dropout(name):
    companions = {}
    if find_objective(name).needs_teacher:
        companions["teacher"] = ["minilm"]
    if name is Name.DIFFCSE:
        companions["generator"] = "distilbert-base"
    check_settings(TrainConfig(objective=name, **companions))
    check_settings(TrainConfig(objective=name, dropout_mode=DropoutMode.NONE, **companions))


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
    objective = build_objective(
        Name.SIMCSE_UNSUP, tiny_encoder, {"dropout_mode": DropoutMode.FIXED}, {}
    )
    with pytest.raises(ConfigError, match="these have different texts"):
        objective.examples(PAIRS, np.random.default_rng(0))


def test_fixed_dropout_encodes_once(tiny_encoder):
    objective = build_objective(
        Name.SIMCSE_UNSUP, tiny_encoder, {"dropout_mode": DropoutMode.FIXED}, {}
    )
    batch = batch_of(objective, SINGLES)
    assert len(batch.rows) == batch.n_examples


def test_second_encoder_starts_equal_and_encodes_the_later_views(tiny_model_dir):
    objective, _ = build("simcse-sup", tiny_model_dir, dual_encoder=True, serve_encoder="second")
    objective.eval()
    for own, other in zip(
        objective.encoder.parameters(), objective.second.parameters(), strict=True
    ):
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
    torch.testing.assert_close(
        vectors[8:], objective.second.embed_rows(batch.rows[8:]), atol=1e-5, rtol=1e-4
    )
    parts = [objective.encode(chunk)[0] for chunk in batch.chunks(5)]
    torch.testing.assert_close(torch.cat(parts), vectors, atol=1e-5, rtol=1e-4)
    assert objective.eval_encoder() is objective.second
    assert objective.second.tokenizer is objective.encoder.tokenizer
    first, _ = build("simcse-sup", tiny_model_dir, dual_encoder=True)
    assert first.eval_encoder() is first.encoder


def test_one_encoder_and_random_order_unless_the_method_says_otherwise(tiny_model_dir):
    ordered = {name for name, cls in OBJECTIVES.items() if cls.ordered}
    assert ordered == {
        name for name, cls in OBJECTIVES.items() if getattr(cls, "always_two", False)
    }
    assert ordered == {Name.QUICK_THOUGHTS, Name.CT}
    objective, _ = build("simcse-unsup", tiny_model_dir)
    assert objective.second is None
    assert objective.eval_encoder() is objective.encoder
    assert Batch([[1, 2], [3]], 2).n_tokens == 3
    batch = Batch(
        [[1]] * 4, 2, texts=[("a", "a", "b"), ("c", "d", "d")]
    )  # two views of two examples
    assert batch.n_sentences == 1 + 2


def test_supervised_simcse_takes_pairs_and_triplets(tiny_encoder):
    objective = build_objective(Name.SIMCSE_SUP, tiny_encoder, {}, {})
    for data in (PAIRS, TRIPLETS):
        assert objective.examples(data, np.random.default_rng(0)).items == data.rows
    with pytest.raises(DataError, match=r"1 columns.*needs anchor, positive and perhaps") as caught:
        objective.examples(SINGLES, np.random.default_rng(0))
    assert "--mode unsup," in caught.value.hint


def test_supervised_simcse_weighs_no_hard_negatives_of_pairs(tiny_encoder):
    objective = build_objective(Name.SIMCSE_SUP, tiny_encoder, {"hard_negative_alpha": 2.0}, {})
    objective.examples(TRIPLETS, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"--hard-neg-alpha 2: .* pairs, without hard negatives"):
        objective.examples(PAIRS, np.random.default_rng(0))


@pytest.mark.parametrize("name", [Name.BARLOW_TWINS, Name.VICREG])
def test_barlow_twins_and_vicreg_take_sentences_and_pairs_but_no_triplets(name, tiny_encoder):
    objective = build_objective(name, tiny_encoder, {}, {"projector_dim": 8})
    for data in (SINGLES, PAIRS):
        assert objective.examples(data, np.random.default_rng(0)).items == data.rows
    with pytest.raises(DataError, match="3 columns") as caught:
        objective.examples(TRIPLETS, np.random.default_rng(0))
    assert "one sentence, or a pair" in caught.value.message
    assert "--mode sup," in caught.value.hint


def test_widths_end_at_that_of_the_head(tiny_encoder):
    head = MlpHead(32, out_dim=16)
    tiny_encoder.change(head=head, head_use=HeadUse.TRAIN_ONLY, pooler=Pooler.CLS)
    assert build_objective(
        Name.SIMCSE_UNSUP, tiny_encoder, {}, {"matryoshka_dims": [4]}
    ).widths == [4, 16]


def test_build_objective_passes_the_common_settings_that_the_objective_knows(tiny_encoder):
    objective = build_objective(
        Name.SIMCSE_UNSUP, tiny_encoder, {"temperature": 0.5, "lr": 1.0}, {}
    )
    assert objective.options.temperature == 0.5


def test_mlm_weight_of_zero_leaves_the_term_out(tiny_model_dir):
    for variant in ("simcse-unsup", "declutr"):
        objective, data = build(variant, tiny_model_dir, mlm_weight=0.0)
        assert objective.mlm is None
        assert set(objective(batch_of(objective, data))[0]) == {"contrastive"}


@pytest.mark.parametrize("tied", [False, True])
def test_mlm_decoder_is_a_matrix_of_its_own_unless_tied(tiny_model_dir, tied):
    objective, data = build("simcse-unsup", tiny_model_dir, mlm_weight=0.5, mlm_tied=tied)
    embeddings = objective.encoder.backbone.get_input_embeddings().weight
    decoder = objective.mlm.head.head.predictions.decoder.weight
    assert (decoder is embeddings) == tied
    assert torch.equal(decoder, embeddings)
    torch.stack(list(objective(batch_of(objective, data))[0].values())).sum().backward()
    torch.optim.SGD(objective.parameters(), lr=1.0).step()
    assert torch.equal(decoder, embeddings) == tied


def test_mlm_head_of_a_checkpoint_is_loaded_whole(tmp_path, tiny_model_dir):
    """Transform, bias and decoder are those of the checkpoint, and the loss that of transformers' own model."""
    config = BertConfig.from_pretrained(tiny_model_dir, tie_word_embeddings=False)
    torch.manual_seed(1)
    model = BertForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path, pooler="avg", device="cpu")
    objective = build_objective(Name.SIMCSE_UNSUP, encoder, {}, {"mlm_weight": 0.1})
    assert objective.warnings == []
    own = objective.mlm.head.head.state_dict()
    for name, value in model.cls.state_dict().items():
        assert torch.equal(own[name], value), name
    objective.eval()
    batch = batch_of(objective, SINGLES)
    masked, labels = (pad(rows, fill, torch.device("cpu"))[0] for rows, fill in (
        (batch.rows[16:], 0), (batch.extra["mlm_labels"], -100)))  # fmt: skip
    expected = model(masked, attention_mask=(masked != 0).long(), labels=labels).loss
    torch.testing.assert_close(objective(batch)[0]["mlm"], 0.1 * expected)


def test_declutr_trains_the_word_embeddings_as_decoder(tiny_model_dir):
    objective, _ = build("declutr", tiny_model_dir)
    embeddings = objective.encoder.backbone.get_input_embeddings().weight
    assert objective.mlm.head.head.predictions.decoder.weight is embeddings


def test_mlm_term_says_that_a_checkpoint_has_no_head(tiny_model_dir):
    objective, _ = build("simcse-unsup", tiny_model_dir, mlm_weight=0.1)
    assert "has no masked-LM head" in objective.warnings[0]


def test_simcse_on_documents_needs_two_sentences_in_one(tiny_encoder):
    objective = build_objective(Name.NEXT_SENTENCE, tiny_encoder, {}, {})
    with pytest.raises(DataError, match="no document has two sentences"):
        objective.examples(TrainingDocuments("d", [["a"], ["b"]], ""), np.random.default_rng(0))


def test_next_sentence_pairs_follow_each_other(tiny_encoder):
    objective = build_objective(Name.NEXT_SENTENCE, tiny_encoder, {}, {})
    pairs = objective.examples(DOCUMENTS, np.random.default_rng(0)).items
    assert len(pairs) == len(SENTENCES) - len(DOCUMENTS.documents)
    for anchor, positive in pairs:
        assert SENTENCES.index(positive) == SENTENCES.index(anchor) + 1


def test_quick_thoughts_keeps_the_order_and_neighbours_within_their_document(tiny_encoder):
    objective = QuickThoughts(tiny_encoder)
    assert objective.ordered
    assert objective.second is not None
    examples = objective.examples(DOCUMENTS, np.random.default_rng(0)).items
    batch = objective.collate(examples, np.random.default_rng(0))
    sentences = [sentence for document in DOCUMENTS.documents for sentence in document]
    assert batch.rows == tiny_encoder.tokenize(sentences, max_length=32) * 2
    assert (batch.n_examples, batch.texts) == (len(sentences), [(s,) for s in sentences])
    owners = [i for i, document in enumerate(DOCUMENTS.documents) for _ in document]
    places = batch.extra["places"]
    for i, j in itertools.product(range(len(sentences)), repeat=2):
        are_neighbours = abs(i - j) == 1 and owners[i] == owners[j]
        assert (abs(places[i] - places[j]) == 1) == are_neighbours


def test_declutr_says_how_long_documents_must_be(tiny_encoder):
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, {})
    with pytest.raises(
        DataError, match=r"longest of 12 documents has \d+ tokens, need 2048"
    ) as caught:
        objective.examples(LONG_DOCUMENTS, np.random.default_rng(0))
    assert "--set max_span=" in caught.value.hint


def byte_level_bpe():
    """Return a small tokenizer of the kind that RoBERTa has: a word keeps the space before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<mask>"]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=190, special_tokens=special)
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def test_declutr_tokenises_running_text(tiny_encoder):
    tiny_encoder.tokens.tokenizer = byte_level_bpe()
    options = {"max_span": 24, "min_span": 4, "mlm_weight": 0}
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, options)
    documents = objective.examples(LONG_DOCUMENTS, np.random.default_rng(0)).items
    texts = [" " + " ".join(document) for document in LONG_DOCUMENTS.documents]
    assert "street. The president" in texts[0]
    encode = tiny_encoder.tokenizer.backend_tokenizer.encode
    assert documents == [encode(text, add_special_tokens=False).ids for text in texts]

    batch = objective.collate(documents[:2], np.random.default_rng(0))
    assert (batch.n_examples, len(batch.rows)) == (4, 12)
    views = [text for view in zip(*batch.texts, strict=True) for text in view]
    assert batch.rows == [encode(text).ids[: tiny_encoder.tokens.max_length] for text in views]
    for group, spans in zip((0, 0, 1, 1), batch.texts, strict=True):
        assert all(span in texts[group] for span in spans)


def test_declutr_cuts_spans_at_the_maximum_length(tiny_encoder):
    options = {"max_span": 24, "min_span": 16, "mlm_weight": 0}
    objective = build_objective(Name.DECLUTR, tiny_encoder, {"max_length": 10}, options)
    documents = objective.examples(LONG_DOCUMENTS, np.random.default_rng(0)).items
    batch = objective.collate(documents[:2], np.random.default_rng(0))
    assert [len(row) for row in batch.rows] == [10] * 12


def test_declutr_leaves_out_short_documents_and_counts_them(tiny_encoder):
    options = {"max_span": 24, "min_span": 4, "mlm_weight": 0}
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, options)
    lengths = [
        len(ids) for ids in objective.examples(LONG_DOCUMENTS, np.random.default_rng(0)).items
    ]
    assert objective.warnings == []
    assert len(lengths) == 12
    few = TrainingDocuments("d", [["A man."], *LONG_DOCUMENTS.documents], "")
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, options)
    assert [len(ids) for ids in objective.examples(few, np.random.default_rng(0)).items] == lengths
    assert objective.warnings == ["1 of 13 documents are shorter than 96 sub-words"]
    limit = TrainingDocuments("d", [["a"] * 95, ["a"] * 96], "")
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, options)
    assert [len(ids) for ids in objective.examples(limit, np.random.default_rng(0)).items] == [96]


def test_declutr_proposes_spans_that_the_longest_document_has_room_for(tiny_encoder):
    documents = TrainingDocuments("d", [["a"] * 100, ["b"] * 60], "")
    for n_anchors, span in ((2, 25), (5, 10), (7, 7)):
        objective = build_objective(
            Name.DECLUTR, tiny_encoder, {}, {"n_anchors": n_anchors, "min_span": 4, "mlm_weight": 0}
        )
        with pytest.raises(DataError, match="longest of 2 documents has 100 tokens") as caught:
            objective.examples(documents, np.random.default_rng(0))
        assert caught.value.hint.endswith(f"--set max_span={span}")


@pytest.mark.parametrize("n_tokens", [100, 9])
def test_declutr_proposes_spans_that_it_takes(tiny_encoder, n_tokens):
    documents = TrainingDocuments("d", [["a"] * n_tokens], "")
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, {"mlm_weight": 0})
    with pytest.raises(DataError, match="need 2048") as caught:
        objective.examples(documents, np.random.default_rng(0))
    proposed = dict(re.findall(r"--set (\w+)=(\d+)", caught.value.hint))
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, {"mlm_weight": 0} | proposed)
    assert len(objective.examples(documents, np.random.default_rng(0))) == 1


def test_declutr_proposes_no_spans_without_room_for_any(tiny_encoder):
    documents = TrainingDocuments("d", [["a"] * 7], "")
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, {"mlm_weight": 0})
    with pytest.raises(DataError) as caught:
        objective.examples(documents, np.random.default_rng(0))
    assert caught.value.hint == "use longer documents"


def test_declutr_spans_of_word_pieces_are_text_of_the_document(tiny_encoder):
    options = {"max_span": 24, "min_span": 4, "mlm_weight": 0}
    objective = build_objective(Name.DECLUTR, tiny_encoder, {}, options)
    documents = objective.examples(LONG_DOCUMENTS, np.random.default_rng(0)).items
    batch = objective.collate(documents, np.random.default_rng(0))
    for i, row in enumerate(batch.rows):
        document = documents[i % batch.n_examples // 2]
        starts = range(len(document) - len(row) + 3)
        assert any(document[start : start + len(row) - 2] == row[1:-1] for start in starts)
        assert 4 <= len(row) - 2 < 24


def test_is_bert_serves_its_convolutions_and_refuses_other_poolers(tiny_encoder):
    objective = build_objective(Name.IS_BERT, tiny_encoder, {}, {"n_channels": 4})
    assert encode(objective.eval_encoder(), ["A man is playing a guitar."]).shape == (1, 12)
    tiny_encoder.change(head=MlpHead(32), head_use=HeadUse.KEPT, pooler=Pooler.CLS)
    with pytest.raises(ConfigError, match="--pooler cls"):
        build_objective(Name.IS_BERT, tiny_encoder, {}, {})
    tiny_encoder.change(head=tiny_encoder.head, pooler=Pooler.AVG)
    with pytest.raises(ConfigError, match="features of its own"):
        build_objective(Name.IS_BERT, tiny_encoder, {}, {})
    tiny_encoder.change(head=None, pooler=Pooler.AVG_TOP2)
    with pytest.raises(ConfigError, match="--pooler avg_top2"):
        build_objective(Name.IS_BERT, tiny_encoder, {}, {})


def test_contrastive_tension_batches_hold_one_positive_to_k_negatives(tiny_encoder):
    objective = build_objective(Name.CT, tiny_encoder, {}, {"n_negatives": 3})
    examples = objective.examples(SINGLES, np.random.default_rng(0)).items
    assert len(examples) == 4 * len(SENTENCES)
    assert objective.ordered
    assert objective.second is not None
    batch = objective.collate([examples[i] for i in range(8)], np.random.default_rng(0))
    assert batch.extra["is_positive"].tolist() == [True, False, False, False] * 2
    assert all(batch.texts[i][0] == batch.texts[i][1] for i in (0, 4))


# The settings of the originals; docs/objectives.md gives the sources.
COMMON = {
    "batch_size": 64, "lr": 3e-5, "epochs": 1.0, "max_length": 32, "warmup": 0.0, "weight_decay": 0.0,
    "max_grad_norm": 1.0, "optimizer": "adamw", "schedule": "linear", "adam_eps": 1e-8, "eval_every": 125,
    "pooler": None, "head": None, "dropout": None, "dropout_mode": "independent", "augment": None,
    "similarity": "cosine", "hard_negative_alpha": 1.0, "gather": "true", "seed": 42, "bucket_batches": 1,
    "max_steps": None, "micro_batch_size": None, "patience": None, "dev_metric": "spearman", "options": {},
}  # fmt: skip
AVERAGED = {"pooler": "avg", "head": "none"}
PROJECTED = {"batch_size": 256, "epochs": 2.0, "head": "none"}
DEFAULTS = {
    Name.SIMCSE_SUP: {"epochs": 3.0, "lr": 5e-5, "head": "kept"},
    Name.QUICK_THOUGHTS: AVERAGED | {"batch_size": 400, "max_grad_norm": 5.0, "optimizer": "adam"},
    Name.SBERT: AVERAGED | {"batch_size": 16, "lr": 2e-5, "max_length": 128, "warmup": 0.1},
    Name.COSENT: AVERAGED
    | {"batch_size": 32, "epochs": 4.0, "lr": 2e-5, "max_length": 128, "warmup": 0.1},
    Name.CT: AVERAGED | {
        "batch_size": 16, "lr": 1e-5, "max_length": 75, "dropout_mode": "none", "optimizer": "rmsprop",
        "schedule": "tension", "max_grad_norm": 0.0, "eval_every": 500,
    },
    Name.IS_BERT: AVERAGED | {
        "batch_size": 32, "lr": 2e-6, "max_length": 128, "warmup": 0.1, "weight_decay": 0.01,
        "optimizer": "adamw-uncorrected", "adam_eps": 1e-7, "eval_every": 1000,
    },
    Name.DECLUTR: AVERAGED | {
        "batch_size": 16, "lr": 5e-5, "max_length": 512, "warmup": 0.1, "weight_decay": 0.1,
        "optimizer": "adamw-uncorrected", "adam_eps": 1e-6, "schedule": "slanted-triangular",
    },
    Name.MLM: AVERAGED | {"lr": 1e-4, "max_length": 128, "warmup": 0.01, "weight_decay": 0.01},
    Name.BARLOW_TWINS: PROJECTED,
    Name.VICREG: PROJECTED,
    Name.DISTILL: {"head": "none"},
    Name.PROMPTBERT: {"max_length": 34, "pooler": "mask"},
    Name.SNCSE: {"max_length": 24, "pooler": "mask"},
    Name.TSDAE: {"batch_size": 8, "head": "none", "max_length": 75, "warmup": 0.1},
    Name.DIFFCSE: {"epochs": 2, "head": "none", "lr": 7e-6},
}  # fmt: skip
OPTIONS = {
    Name.SIMCSE_UNSUP: {"temperature": 0.05, "mlm_probability": 0.15, "mlm_weight": 0.0, "mlm_tied": False,
        "max_length": 32, "original_scaling": False, "augment_both": False, "dual_encoder": False,
        "dropout_mode": "independent", "symmetric": False},
    Name.SIMCSE_SUP: {"temperature": 0.05, "hard_negative_alpha": 1.0, "symmetric": False},
    Name.NEXT_SENTENCE: {"window": 1, "temperature": 0.05},
    Name.QUICK_THOUGHTS: {"max_length": 32},
    Name.SBERT: {"max_length": 128},
    Name.COSENT: {"temperature": 0.05, "max_length": 128},
    Name.CT: {"n_negatives": 7, "max_length": 75},
    Name.IS_BERT: {"n_channels": 256, "max_length": 128},
    Name.DECLUTR: {
        "n_anchors": 2, "n_positives": 2, "min_span": 32, "max_span": 512, "temperature": 0.05,
        "mlm_weight": 1.0, "mlm_probability": 0.15,
    },
    Name.MLM: {"mlm_probability": 0.15, "max_length": 128, "whole_words": False},
    Name.BARLOW_TWINS: {"projector_dim": 8192, "redundancy_weight": 0.0051},
    Name.VICREG: {
        "projector_dim": 8192, "invariance_weight": 25.0, "variance_weight": 25.0, "covariance_weight": 1.0
    },
    Name.RANKCSE: {
        "rank": "listmle", "rank_weight": 1.0, "consistency_weight": 1.0, "rank_temperature": 0.05,
        "teacher_temperature": 0.025, "as_released": False,
    },
    Name.DISTILL: {"match": "cosine", "max_length": 32},
    Name.PROMPTBERT: {
        "template_bias": "train", "temperature": 0.05,
        "template": ('This sentence of "{.}" means {mask}.', 'This sentence : "{.}" means {mask}.'),
    },
    Name.SNCSE: {
        "margin_low": 0.1, "margin_high": 0.3, "soft_weight": 1e-3,
        "template": ('This sentence : " {.} " means {mask} .', 'This sentence of " {.} " means {mask} .'),
    },
    Name.TSDAE: {"delete": 0.6, "tie_decoder": True, "max_length": 75},
    Name.DIFFCSE: {"rtd_weight": 0.005, "mask_rate": 0.3, "fill": "argmax", "as_released": False},
}  # fmt: skip


@pytest.mark.parametrize("name", list(Name))
def test_defaults_are_those_of_the_original(name):
    config = resolve_config(flags={"objective": name}, objective_defaults=objective_defaults)
    found = {setting: config.to_dict()[setting] for setting in COMMON}
    assert found == COMMON | DEFAULTS.get(name, {})
    assert config.effective_temperature == 0.05
    cls = OBJECTIVES[name]
    options = vars(cls.Options())
    assert options == options | OPTIONS.get(name, {})


def test_flag_beats_environment_beats_recipe_beats_the_default_of_the_objective(
    tmp_path, monkeypatch
):
    (tmp_path / "recipe.yaml").write_text(
        "objective: ct\nmax_grad_norm: 2\nlr: 0.5\nschedule: constant\n"
    )

    def resolved(**flags):
        given = {"recipe": str(tmp_path / "recipe.yaml"), "flags": flags}
        config = resolve_config(**given, objective_defaults=objective_defaults)
        return config.optimizer, config.max_grad_norm, config.lr, config.schedule

    assert resolved() == ("rmsprop", 2, 0.5, "constant")
    monkeypatch.setenv("SIMCSE_MAX_GRAD_NORM", "3")
    monkeypatch.setenv("SIMCSE_LR", "0.25")
    assert resolved() == ("rmsprop", 3, 0.25, "constant")
    assert resolved(lr=0.125, schedule="tension", optimizer="adam") == ("adam", 3, 0.125, "tension")


@pytest.mark.parametrize("options", [{}, {"mlm_weight": 0.1}])
def test_unsupervised_term_is_the_loss_of_the_anchors_against_themselves(options, tiny_encoder):
    objective = build_objective(Name.SIMCSE_SUP, tiny_encoder, {}, {"unsup_weight": 0.5, **options})
    batch = batch_of(objective, TRIPLETS)
    plain = batch_of(build_objective(Name.SIMCSE_SUP, tiny_encoder, {}, {}), TRIPLETS)
    n = batch.n_examples
    assert batch.rows[: 4 * n] == plain.rows + plain.rows[:n]
    assert len(batch.rows) == (7 * n if options else 4 * n)  # the term's copies are not masked
    objective.train()
    torch.manual_seed(0)
    representations = objective.encode(batch)
    anchors, positives, negatives, again = representations[0].view(4, n, -1)
    assert not torch.allclose(anchors, again)  # another dropout mask
    expected = info_nce(anchors, positives, temperature=0.05, hard_negatives=negatives)
    expected = expected + 0.5 * info_nce(anchors, again, temperature=0.05)
    found = objective.losses(representations, batch)[0]["contrastive"]
    assert found.detach() == pytest.approx(expected.detach())


def test_unsupervised_term_of_orthogonal_anchors_without_dropout_has_a_closed_form(tiny_encoder):
    objective = build_objective(
        Name.SIMCSE_SUP, tiny_encoder, {"temperature": 0.5}, {"unsup_weight": 2.0}
    )
    eye = torch.eye(6)
    n_classes = np.log(1 + 5 * np.exp(-2))
    assert float(objective.contrast([eye, eye, eye])) == pytest.approx(3 * n_classes)


def test_angle_term_ranks_each_positive_above_all_hard_negatives(tiny_encoder):
    options = {"angle_weight": 0.5, "unsup_weight": 1.0}
    objective = build_objective(Name.SIMCSE_SUP, tiny_encoder, {"temperature": 0.5}, options)
    generator = torch.Generator().manual_seed(0)
    anchors, positives, negatives, again = torch.randn(4, 5, 6, generator=generator).double()
    pairs = complex_score(anchors, positives), complex_score(anchors, negatives)
    total = 1.0
    for positive in pairs[0].tolist():
        for negative in pairs[1].tolist():
            total += np.exp((negative - positive) / 0.5)
    views = [anchors, positives, negatives, again]
    assert float(objective.angle_term(views)) == pytest.approx(np.log(total), rel=1e-12)
    batch = batch_of(objective, TRIPLETS)
    terms, _ = objective.view_terms(views, batch)
    assert float(terms["angle"]) == pytest.approx(0.5 * np.log(total), rel=1e-12)
    assert float(terms["contrastive"]) == float(objective.contrast(views))


def test_angle_term_needs_triplets(tiny_encoder):
    objective = build_objective(Name.SIMCSE_SUP, tiny_encoder, {}, {"angle_weight": 1.0})
    with pytest.raises(ConfigError, match="angle_weight=1: pairs has no hard_negative"):
        objective.examples(PAIRS, np.random.default_rng(0))
