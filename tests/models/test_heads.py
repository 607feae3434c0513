import pytest
import torch
from torch import Tensor, distributed, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from processes import run_on_processes
from simcse_cli.models.heads import GlobalBatchNorm, MlpHead, Projector, TokenCnn
from simcse_cli.models.pretrained import MlmHead

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 30,
}


def test_mlp_head_is_a_linear_layer_and_tanh():
    head, hidden = MlpHead(4), torch.randn(3, 4)
    torch.testing.assert_close(head(hidden), torch.tanh(hidden @ head.dense.weight.T))


def test_mlp_head_starts_as_bert_starts_new_layers():
    torch.manual_seed(0)
    head = MlpHead(256, std=0.05)
    assert head.dense.bias.abs().max() == 0
    assert head.dense.weight.std().item() == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(("bias", "n_biases"), [(False, 0), (True, 2)])
def test_projector_has_the_layers_of_its_paper(bias, n_biases):
    projector = Projector(6, 10, bias=bias)
    linears = [layer for layer in projector if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linears] == [
        (6, 10),
        (10, 10),
        (10, 10),
    ]
    assert sum(layer.bias is not None for layer in linears) == n_biases
    assert [type(layer).__name__ for layer in projector] == [
        *("Linear", "GlobalBatchNorm", "ReLU"),
        *("Linear", "GlobalBatchNorm", "ReLU", "Linear"),
    ]


ROWS = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1
TARGETS = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradients(norm: nn.Module, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, input gradient and weight gradient of a loss summed over rows."""
    inputs = ROWS[rows].clone().requires_grad_()
    output = norm(inputs)
    (output * TARGETS[rows]).square().sum().backward()
    return output.detach(), inputs.grad, norm.weight.grad


def worker(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = slice(0, 2) if rank == 0 else slice(2, 7)
    output, input_gradient, weight_gradient = gradients(GlobalBatchNorm(4).double(), rows)
    distributed.all_reduce(weight_gradient)
    return output, input_gradient, weight_gradient


def test_global_batch_norm_on_two_processes_equals_one(tmp_path):
    first, second = run_on_processes(worker, tmp_path)
    expected = gradients(nn.BatchNorm1d(4).double(), slice(0, 7))
    for i in range(2):
        torch.testing.assert_close(
            torch.cat([first[i], second[i]]), expected[i], rtol=1e-10, atol=1e-12
        )
    torch.testing.assert_close(first[2], expected[2], rtol=1e-10, atol=1e-12)


def narrow_rows() -> Tensor:
    """Return rows in bfloat16 whose number and whose means have more than eight bits."""
    rows = torch.randn(602, 4, generator=torch.Generator().manual_seed(0))
    return (3 + 0.05 * rows).bfloat16()


def narrow_worker(rank: int) -> Tensor:
    return GlobalBatchNorm(4)(narrow_rows().chunk(2)[rank]).detach()


def test_global_batch_norm_on_two_processes_does_not_add_up_in_16_bits(tmp_path):
    found = torch.cat(run_on_processes(narrow_worker, tmp_path))
    expected = nn.BatchNorm1d(4).double()(narrow_rows().double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_global_batch_norm_on_one_process_is_batch_norm(scale):
    rows = ROWS * scale
    torch.testing.assert_close(
        GlobalBatchNorm(4).double()(rows), nn.BatchNorm1d(4).double()(rows), rtol=0, atol=0
    )


class TestTokenCnn:
    def test_token_cnn_equals_a_loop_over_neighbours(self):
        cnn, tokens = TokenCnn(4, n_channels=2), torch.randn(1, 6, 4)
        features = cnn(tokens, torch.ones(1, 6, dtype=torch.long))
        assert features.shape == (1, 6, 6)
        for k, convolution in zip((1, 3, 5), cnn.convolutions, strict=True):
            for t in range(6):
                expected = convolution.bias.clone()
                for offset in range(k):
                    position = t + offset - k // 2
                    if 0 <= position < 6:
                        expected = expected + convolution.weight[:, :, offset] @ tokens[0, position]
                columns = slice((k // 2) * 2, (k // 2) * 2 + 2)
                torch.testing.assert_close(features[0, t, columns], expected)

    def test_token_cnn_does_not_see_padding(self):
        cnn, tokens = TokenCnn(4, n_channels=2), torch.randn(1, 6, 4)
        short = cnn(tokens[:, :4], torch.ones(1, 4))
        padded = cnn(tokens, torch.tensor([[1.0, 1, 1, 1, 0, 0]]))
        torch.testing.assert_close(padded[:, :4], short)


class TestMlmHead:
    @pytest.mark.parametrize(
        ("config", "model_class"),
        [
            (BertConfig(**SIZES), BertForMaskedLM),
            (RobertaConfig(**SIZES, pad_token_id=1), RobertaForMaskedLM),
        ],
    )
    def test_mlm_head_from_a_checkpoint_gives_its_scores(self, tmp_path, config, model_class):
        model = model_class(config).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        model.save_pretrained(tmp_path)
        encoder = model.base_model
        head = MlmHead(config, encoder.get_input_embeddings(), tied=True)
        assert head.load_pretrained(str(tmp_path))
        ids = torch.tensor([[4, 7, 9]])
        expected = model(ids).logits
        torch.testing.assert_close(head(encoder(ids).last_hidden_state), expected)

    def test_mlm_head_shares_the_input_embedding(self):
        encoder = BertModel(BertConfig(**SIZES))
        head = MlmHead(encoder.config, encoder.get_input_embeddings(), tied=True)
        parameters = {id(parameter) for parameter in head.parameters()}
        assert id(encoder.get_input_embeddings().weight) in parameters

    def test_mlm_head_reports_a_checkpoint_without_one(self, tmp_path):
        encoder = BertModel(BertConfig(**SIZES))
        encoder.save_pretrained(tmp_path)
        head = MlmHead(encoder.config, encoder.get_input_embeddings(), tied=True)
        before = {name: value.clone() for name, value in head.state_dict().items()}
        assert not head.load_pretrained(str(tmp_path))
        for name, value in head.state_dict().items():
            torch.testing.assert_close(value, before[name])

    def test_mlm_head_refuses_an_architecture_without_one_module(self):
        config = DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=8, vocab_size=30)
        encoder = DistilBertModel(config)
        with pytest.raises(ValueError, match="DistilBertForMaskedLM"):
            MlmHead(config, encoder.get_input_embeddings(), tied=True)
