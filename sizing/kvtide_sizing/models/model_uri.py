"""Where a model is: hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH or file:///PATH."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import NoReturn

from kvtide_sizing.errors import InvalidModelUri

PVC_ROOT = "/models/pvc"


class Scheme(enum.StrEnum):
    """The three places that a model can come from."""

    HF = "hf"
    PVC = "pvc"
    FILE = "file"


_FORMS = "hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH or file:///PATH (a safetensors folder or a .gguf file)"
_REPO_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HF = re.compile(rf"(?P<repo>{_REPO_PART}/{_REPO_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?")
# A PersistentVolumeClaim's name is a DNS-1123 subdomain.
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class ModelUri:
    """A parsed model URI; `str()` gives the text back.

    hf:    repo "ORG/NAME", revision or None        pvc: claim, path within the claim
    file:  path, absolute
    """

    scheme: Scheme
    repo: str | None = None
    revision: str | None = None
    claim: str | None = None
    path: str | None = None

    @classmethod
    def parse(cls, text: str) -> ModelUri:
        """Read a model URI. Raises InvalidModelUri with the form that would work."""
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in tuple(Scheme):
            _refuse(text, f"write {_FORMS}")
        if any(ord(character) <= 32 or ord(character) == 127 for character in text):
            _refuse(text, "it holds a space or a control character")
        if scheme == Scheme.HF:
            match = _HF.fullmatch(rest)
            if match is None:
                _refuse(text, "write hf://ORG/NAME or hf://ORG/NAME@REVISION")
            return cls(Scheme.HF, repo=match["repo"], revision=match["revision"])
        if scheme == Scheme.PVC:
            claim, _, path = rest.partition("/")
            if not _CLAIM.fullmatch(claim) or not path:
                _refuse(text, "write pvc://CLAIM/PATH, the claim's name and the path within it")
            return cls(Scheme.PVC, claim=claim, path=_checked_path(text, path))
        if not rest.startswith("/") or rest == "/":
            _refuse(text, "write file:///PATH with three slashes: the path is absolute")
        return cls(Scheme.FILE, path="/" + _checked_path(text, rest[1:]))

    def __str__(self) -> str:
        if self.scheme is Scheme.HF:
            return f"hf://{self.repo}" + (f"@{self.revision}" if self.revision else "")
        if self.scheme is Scheme.PVC:
            return f"pvc://{self.claim}/{self.path}"
        return f"file://{self.path}"

    def local_path(self, pvc_root: str = PVC_ROOT) -> str | None:
        """Where a pod finds the model's files: pvc://CLAIM/PATH under pvc_root; None for hf://, not there yet."""
        if self.scheme is Scheme.PVC:
            return f"{pvc_root}/{self.claim}/{self.path}"
        return self.path


def _checked_path(text: str, path: str) -> str:
    path = path.rstrip("/")
    if any(part in ("", ".", "..") for part in path.split("/")):
        _refuse(text, "its path must not hold '.', '..' or empty parts")
    return path


def _refuse(text: str, remedy: str) -> NoReturn:
    raise InvalidModelUri(f"'{text}' is not a model URI: {remedy}")
