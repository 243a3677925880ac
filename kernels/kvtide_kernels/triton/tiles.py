"""Reading packed K and V inside attention: tiles of tokens, scores and weighted sums.

K and V tiles are never scaled, nor even made numbers one by one. They are loaded as words of 16 bits, and masked into
the mantissa of a float whose exponent makes that OFFSET + level, two at a time in a register:

    INT8   word  b1 b0        part 0: b0   part 1: b1                      float16  1024 + (level + 128)
    INT4   word  n3 n2 n1 n0  part i: ni                                   bfloat16  128 + level

so a head is as many dots as a word has parts, of every second or fourth element of q. What is left is rank one:

    score        q . k         =  scale * (q . parts - OFFSET * sum(q)) + zero * sum(q)
    sum of p v   sum p * v     =  sum (p * scale) * parts  +  sum (p * zero - OFFSET * (p * scale))

OFFSET * sum(q) is subtracted in float32: what that loses is below a hundredth of what the format itself has lost.

MATH says for what that is written:  "ptx" for NVIDIA, where LLVM would take register pairs apart; "plain" for others;
"float32" for Triton's interpreter, which has no bfloat16 arithmetic: dots multiply float32 there.
"""

import triton
import triton.language as tl


def _unpack(shift: int, mask: int, exponent: int, table: int) -> tl.constexpr:
    """PTX for a register of two words: shift, mask, then set (table 0xEA) or flip (0x6A) bits of each."""
    masked, floated = f"{mask * 0x10001:#x}", f"{exponent * 0x10001:#x}"
    return tl.constexpr(f"{{ .reg .b32 t; shr.b32 t, $1, {shift}; lop3.b32 $0, t, {masked}, {floated}, {table:#x}; }}")


INT8_PART_0 = _unpack(0, 0xFF, 0x6480, 0x6A)
INT8_PART_1 = _unpack(8, 0xFF, 0x6480, 0x6A)
INT4_PART_0 = _unpack(0, 0xF, 0x4300, 0xEA)
INT4_PART_1 = _unpack(4, 0xF, 0x4300, 0xEA)
INT4_PART_2 = _unpack(8, 0xF, 0x4300, 0xEA)
INT4_PART_3 = _unpack(12, 0xF, 0x4300, 0xEA)


@triton.jit
def block_ids(table, start, tokens, end, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """The blocks of a tile of tokens [start, start + TILE): one where a block holds the tile, else one a token."""
    if TILE <= BLOCK:
        blocks = tl.load(table + start // BLOCK)
    else:
        blocks = tl.load(table + tokens // BLOCK, mask=tokens < end, other=0)
    return blocks.to(tl.int64)


@triton.jit
def operand(x, BITS: tl.constexpr, MATH: tl.constexpr):
    """What a dot with values of BITS multiplies: 16 bits on a device."""
    if MATH == "float32":
        x = x.to(tl.float32)
    elif BITS == 8:
        x = x.to(tl.float16)
    else:
        x = x.to(tl.bfloat16)
    return x


@triton.jit
def _part(words, PART: tl.constexpr, BITS: tl.constexpr, MATH: tl.constexpr):
    """One part of each word as what a dot multiplies: OFFSET + level, or the number itself where it is not packed."""
    if BITS == 8 and MATH == "ptx":
        byte: tl.constexpr = INT8_PART_1 if PART == 1 else INT8_PART_0
        words = tl.inline_asm_elementwise(byte, "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)
    elif BITS == 4 and MATH == "ptx":
        low: tl.constexpr = INT4_PART_1 if PART == 1 else INT4_PART_0
        high: tl.constexpr = INT4_PART_3 if PART == 3 else INT4_PART_2
        nibble: tl.constexpr = high if PART >= 2 else low
        words = tl.inline_asm_elementwise(nibble, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    elif BITS == 8:
        words = (((words >> (8 * PART)) & 0xFF) ^ 0x6480).to(tl.float16, bitcast=True)
    elif BITS == 4:
        words = (((words >> (4 * PART)) & 0xF) | 0x4300).to(tl.bfloat16, bitcast=True)
    return operand(words, BITS, MATH)


@triton.jit
def _load_words(head, row, seen, DIM: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr):
    """Words [TILE, WIDTH * BITS / 16]: bfloat16, 0 where not seen; or packed ones, of all tokens.

    A free slot may hold a NaN in bfloat16. Packed it is a number whatever it holds, and scales and weights are masked.
    """
    WORDS: tl.constexpr = WIDTH * BITS // 16
    STORED: tl.constexpr = DIM * BITS // 16
    columns = tl.arange(0, WORDS)
    data = head + row * (2 * STORED)
    if BITS == 16:
        where = data.to(tl.pointer_type(tl.bfloat16))[:, None] + columns[None, :]
        words = tl.load(where, mask=seen[:, None] & (columns < STORED)[None, :], other=0.0)
    else:
        where = data.to(tl.pointer_type(tl.uint16))[:, None] + columns[None, :]
        words = tl.load(where, mask=(columns < STORED)[None, :], other=0)
    return words


@triton.jit
def _load_per_token(pair_head, pair_row, seen, AT: tl.constexpr):
    """A float16 of each token, from byte AT of its (block, head) on, as float32 [TILE]; 0 where not seen.

    By pairs: the compiler prefetches loads of 32 bits and more, and would wait for each one of 16.
    """
    words = tl.load((pair_head + AT).to(tl.pointer_type(tl.uint32)) + pair_row)
    low = (words & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
    high = (words >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    both = tl.reshape(tl.join(low, high), seen.shape).to(tl.float32)
    return tl.where(seen, both, 0.0)


@triton.jit
def load_query(query, mask, DIM: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, MATH: tl.constexpr):
    """Query rows as they meet keys of BITS: the elements of each part (of part 0, where there are fewer), their sum.

    query: pointers [M] to the first element of each row
    """
    PARTS: tl.constexpr = 16 // BITS
    words = tl.arange(0, WIDTH // PARTS)
    where = query[:, None] + PARTS * words[None, :]
    inside = mask[:, None] & (words < DIM // PARTS)[None, :]
    q0 = operand(tl.load(where, mask=inside, other=0.0), BITS, MATH)
    q1, q2, q3 = q0, q0, q0
    total = tl.sum(q0.to(tl.float32), 1)
    if PARTS >= 2:
        q1 = operand(tl.load(where + 1, mask=inside, other=0.0), BITS, MATH)
        total += tl.sum(q1.to(tl.float32), 1)
    if PARTS == 4:
        q2 = operand(tl.load(where + 2, mask=inside, other=0.0), BITS, MATH)
        q3 = operand(tl.load(where + 3, mask=inside, other=0.0), BITS, MATH)
        total += tl.sum(q2.to(tl.float32), 1) + tl.sum(q3.to(tl.float32), 1)
    return q0, q1, q2, q3, total


@triton.jit
def key_scores(
    q0,
    q1,
    q2,
    q3,
    total,
    head,
    row,
    pair_head,
    pair_row,
    seen,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    MATH: tl.constexpr,
):
    """Dots [M, TILE] in float32 of what `load_query` gave with the tile's keys; 0 for tokens that are not seen.

    head: pointers to the first byte of the tokens' (block, head), one or [TILE]; row [TILE]: their places in it
    pair_head, pair_row [TILE / 2]: the same of each two tokens, rows counted in pairs
    """
    words = tl.trans(_load_words(head, row, seen, DIM, WIDTH, BITS))
    scores = tl.dot(q0, _part(words, 0, BITS, MATH))
    if BITS <= 8:
        scores = tl.dot(q1, _part(words, 1, BITS, MATH), scores)
    if BITS == 4:
        scores = tl.dot(q2, _part(words, 2, BITS, MATH), scores)
        scores = tl.dot(q3, _part(words, 3, BITS, MATH), scores)
    if BITS <= 8:
        OFFSET: tl.constexpr = 1152.0 if BITS == 8 else 128.0
        scores = (scores - (OFFSET * total)[:, None]) * _load_per_token(
            pair_head, pair_row, seen, BLOCK * DIM * BITS // 8
        )[None, :]
    if BITS == 4:
        scores += total[:, None] * _load_per_token(pair_head, pair_row, seen, BLOCK * (DIM * BITS // 8 + 2))[None, :]
    return scores


@triton.jit
def add_values(
    weights,
    shrink,
    v0,
    v1,
    v2,
    v3,
    shift,
    head,
    row,
    pair_head,
    pair_row,
    seen,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    MATH: tl.constexpr,
):
    """The sums times shrink [M], and weights [M, TILE] times the tile's values.

    v0 ... v3: a sum [M, WIDTH * BITS / 16] for each part; shift [M, TILE]: what to add to all elements, once summed
    """
    words = _load_words(head, row, seen, DIM, WIDTH, BITS)
    if BITS <= 8:
        OFFSET: tl.constexpr = 1152.0 if BITS == 8 else 128.0
        scaled = weights * _load_per_token(pair_head, pair_row, seen, BLOCK * DIM * BITS // 8)[None, :]
        p = operand(scaled, BITS, MATH)
        shift = shift * shrink[:, None] - OFFSET * p.to(tl.float32)
        if BITS == 4:
            shift += weights * _load_per_token(pair_head, pair_row, seen, BLOCK * (DIM * BITS // 8 + 2))[None, :]
    else:
        p = operand(weights, BITS, MATH)
    v0 = tl.dot(p, _part(words, 0, BITS, MATH), v0 * shrink[:, None])
    if BITS <= 8:
        v1 = tl.dot(p, _part(words, 1, BITS, MATH), v1 * shrink[:, None])
    if BITS == 4:
        v2 = tl.dot(p, _part(words, 2, BITS, MATH), v2 * shrink[:, None])
        v3 = tl.dot(p, _part(words, 3, BITS, MATH), v3 * shrink[:, None])
    return v0, v1, v2, v3, shift


@triton.jit
def whole_values(v0, v1, v2, v3, shift, M: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr):
    """The sums [M, WIDTH], elements in their order; shift [M]."""
    if BITS == 4:
        v0 = tl.join(tl.join(v0, v2), tl.join(v1, v3))
    elif BITS == 8:
        v0 = tl.join(v0, v1)
    values = tl.reshape(v0, (M, WIDTH))
    if BITS <= 8:
        values += shift[:, None]
    return values
