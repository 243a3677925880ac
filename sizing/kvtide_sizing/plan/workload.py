"""What is wished for: the sequences that come, and the choices that a person has fixed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvtide_sizing.errors import InvalidWorkload

BLOCK_SIZES = (16, 32, 64, 128, 256)


class Profile(enum.StrEnum):
    """What the sequences are like; Custom takes both mean lengths from the workload."""

    CHAT = "Chat"
    DOCUMENTS = "Documents"
    CUSTOM = "Custom"


# (mean prompt, mean output) in tokens, where the workload does not say.
_MEANS = {Profile.CHAT: (512, 256), Profile.DOCUMENTS: (4096, 512)}


@dataclass(frozen=True)
class Workload:
    """The sequences that one replica is to hold. Tokens; None is: what the profile or the model says."""

    profile: Profile = Profile.CHAT
    max_context_tokens: int | None = None
    mean_prompt_tokens: int | None = None
    mean_output_tokens: int | None = None
    target_concurrency: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidWorkload for an amount below one, and for Custom without both means."""
        for name, value in (
            ("maxContextTokens", self.max_context_tokens),
            ("meanPromptTokens", self.mean_prompt_tokens),
            ("meanOutputTokens", self.mean_output_tokens),
            ("targetConcurrency", self.target_concurrency),
        ):
            if value is not None and value < 1:
                raise InvalidWorkload(f"{name} is {value}; write 1 or more, or leave it out")
        if self.profile == Profile.CUSTOM and None in (self.mean_prompt_tokens, self.mean_output_tokens):
            raise InvalidWorkload(
                "profile Custom needs meanPromptTokens and meanOutputTokens; write both, or profile Chat"
            )

    @property
    def expected_prompt_tokens(self) -> int:
        """The mean prompt: the workload's own, or its profile's."""
        return self.mean_prompt_tokens or _MEANS[self.profile][0]

    @property
    def expected_output_tokens(self) -> int:
        """The mean output: the workload's own, or its profile's."""
        return self.mean_output_tokens or _MEANS[self.profile][1]

    @property
    def mean_sequence_tokens(self) -> int:
        """Prompt and output of an expected sequence together."""
        return self.expected_prompt_tokens + self.expected_output_tokens


@dataclass(frozen=True)
class Policy:
    """The choices that are fixed, and how far the others may go.

    precision:                 "Auto" or a `Precision`
    block_size_tokens:         None: chosen
    kv_heads:                  "Native", "Auto" (native or the variants) or a number (a variant, else pooled heads)
    variants:                  KV heads of the model's trained variants
    max_quality_loss_percent:  what Auto may cost in perplexity
    weights:                   "Auto" (as the checkpoint is quantised, else BF16) or a `WeightFormat`
    prefix_caching:            whether prompts that begin alike share what was computed
    served_only:               refuse what this release's worker does not run, and choose nothing of it
    """

    precision: str = "Auto"
    block_size_tokens: int | None = None
    kv_heads: str | int = "Native"
    variants: tuple[int, ...] = ()
    max_quality_loss_percent: float = 1.0
    weights: str = "Auto"
    served_only: bool = False
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        """Raise InvalidWorkload for a block size that is none of BLOCK_SIZES and for KV heads that are no choice."""
        if self.block_size_tokens is not None and self.block_size_tokens not in BLOCK_SIZES:
            raise InvalidWorkload(
                f"blockSizeTokens {self.block_size_tokens}: write one of {', '.join(map(str, BLOCK_SIZES))}"
            )
        if isinstance(self.kv_heads, str) and self.kv_heads not in ("Native", "Auto"):
            raise InvalidWorkload(f"kvHeads '{self.kv_heads}': write Native, Auto or a number")
        if isinstance(self.kv_heads, int) and self.kv_heads < 1:
            raise InvalidWorkload(f"kvHeads {self.kv_heads}: write 1 or more, Native or Auto")
        if any(heads < 1 for heads in self.variants):
            raise InvalidWorkload(f"variants of {min(self.variants)} KV heads: write 1 or more for each")
        if not self.max_quality_loss_percent >= 0:  # nan is neither
            raise InvalidWorkload(f"maxQualityLossPercent {self.max_quality_loss_percent}: write 0 or more")
