"""Log probabilities against torch's own."""

import pytest
import torch

from kvtide_worker.engine.logprobs import token_logprobs
from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import Sampled, Sampler


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_torchs_of_the_whole_row(dtype: torch.dtype) -> None:
    logits = (torch.randn(500, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    expected = torch.distributions.Categorical(logits=logits.double()).logits
    order = expected.argsort(descending=True, stable=True)
    told = token_logprobs(logits, int(order[4]), 3)
    assert told.logprob == pytest.approx(float(expected[order[4]]), abs=1e-5)
    assert told.rank == 1 + int((expected > expected[order[4]]).sum())
    assert [value for _, value in told.top] == pytest.approx(expected[order[:3]].tolist(), abs=1e-5)
    assert token_logprobs(logits, 7, 0).top == []


def test_they_are_the_models_own_whatever_the_request_does_to_them() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    sampling = SamplingParams(max_tokens=4, temperature=0.0, logit_bias={2: 100.0}, logprobs=2)
    (sampled,) = Sampler(torch.device("cpu")).sample(logits, [Request("a", 0, [1], sampling)])
    assert isinstance(sampled, Sampled)
    assert sampled.token_id == 2
    assert sampled.logprobs is not None
    # log(e^2 / (e^1 + e^3 + e^2 + e^0)) = 2 - log(2.7183 + 20.0855 + 7.3891 + 1) = 2 - 3.4402
    assert sampled.logprobs.logprob == pytest.approx(-1.4402, abs=1e-4)
    assert sampled.logprobs.rank == 2
    assert [token for token, _ in sampled.logprobs.top] == [1, 2]
