"""Texts that tokenizers differ on: contractions, code, digits, spaces, scripts, emoji, special tokens as text."""

TEXTS = [
    "The capital of France is Paris.",
    "I'm sure they've said it'll do, didn't they?",
    "def f(x):\n    return {'a': [x ** 2, \"b\"]}  # done\n\n\n",
    "\t\ttabs,   spaces  and \r\n ends   ",
    "3.14159, 2026-11-29, 0x1F, ½ and ٣",
    "Grüße, Ωμέγα, привет, 你好世界, こんにちは, 한국어, नमस्ते",
    "👍 🏳️‍🌈 👩‍👩‍👧‍👦 🇫🇷 \u200b\u00a0 e\u0301",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> <repo_name>x<not_special>",
    "",
    " ",
]
