"""Triton kernels of `fused`: the operations between the generator's convolutions.

Maps lie pixel by pixel, (b, h, w, c); a program sees `BLOCK` pixels of one image. Channels are
counted to the next power of two, `WIDE`; `PER_GROUP` of them share a norm. Arithmetic is in
float32.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def log_average(mde_depth, out, height, width, h, w,
                ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """log D averaged over each cell of the grid."""
    image = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = q // w, q % w
    top, bottom = row * height // h, ((row + 1) * height + h - 1) // h
    left, right = column * width // w, ((column + 1) * width + w - 1) // w
    there = mde_depth + image * height * width
    total = tl.zeros((BLOCK,), tl.float32)
    for dv in range(ROWS):
        for du in range(COLUMNS):
            v, u = top + dv, left + du
            inside = (v < bottom) & (u < right) & (q < h * w)
            total += tl.log(tl.load(there + v * width + u, mask=inside, other=1.0))
    mean = total / ((bottom - top) * (right - left)).to(tl.float32)
    tl.store(out + image * h * w + q, mean, mask=q < h * w)


@triton.jit
@no_type_check
def median(x, out, count, WIDE: tl.constexpr):
    """The lower median of each row, bit by bit: the largest number with no more than half below."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, WIDE)
    bits = tl.load(x + row * count + i, mask=i < count, other=0.0).to(tl.int32, bitcast=True)
    # Whole numbers in the order of the values.
    key = tl.where(i < count, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), 0x7FFFFFFF)
    rank = (count - 1) // 2
    found = tl.where(tl.sum((key < 0).to(tl.int32)) <= rank, 0, -2147483648)
    for bit in range(31):
        larger = found + (1 << (30 - bit))
        found = tl.where(tl.sum((key < larger).to(tl.int32)) <= rank, larger, found)
    bits = tl.where(found < 0, found ^ 0x7FFFFFFF, found)
    tl.store(out + row, bits.to(tl.float32, bitcast=True))


@triton.jit
@no_type_check
def project_and_sum(
    features, weight, out, sums, pixels,
    C: tl.constexpr, CHUNK: tl.constexpr, REDUCED: tl.constexpr, OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """F times its projection, and the sums of F and F² over a part, in one pass over F."""
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q, o = part * BLOCK + tl.arange(0, BLOCK), tl.arange(0, OUT)
    reduced = tl.zeros((BLOCK, OUT), tl.float32)
    first, second = 0.0, 0.0
    for begin in tl.static_range(0, C, CHUNK):
        c = begin + tl.arange(0, CHUNK)
        at = (image * pixels + q)[:, None] * C + c
        x = tl.load(features + at, mask=(q < pixels)[:, None] & (c < C), other=0.0)
        at = c[:, None] * REDUCED + o
        matrix = tl.load(weight + at, mask=(c < C)[:, None] & (o < REDUCED), other=0.0)
        reduced += tl.dot(x, matrix, input_precision="ieee")
        x = x.to(tl.float32)
        first += tl.sum(x)
        second += tl.sum(x * x)
    at = (image * pixels + q)[:, None] * REDUCED + o
    tl.store(out + at, reduced, mask=(q < pixels)[:, None] & (o < REDUCED))
    at = (image * tl.num_programs(0) + part) * 2
    tl.store(sums + at, first)
    tl.store(sums + at + 1, second)


@triton.jit
@no_type_check
def lay_cues(
    projected, gain, shift, log_depth, level, out, hf, wf, h, w, limit,
    REDUCED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CUES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """log D around its level, ∇log D, x and cell averages of the normalised F, with a border of
    one; no rows, no F."""
    image = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = _source(q, h, w, 1)
    pixels = (h + 2) * (w + 2)
    there, around = log_depth + image * h * w, tl.load(level + image)
    here = _centred(there + row * w + column, around, limit)
    right = _centred(there + row * w + tl.minimum(column + 1, w - 1), around, limit)
    left = _centred(there + row * w + tl.maximum(column - 1, 0), around, limit)
    below = _centred(there + tl.minimum(row + 1, h - 1) * w + column, around, limit)
    above = _centred(there + tl.maximum(row - 1, 0) * w + column, around, limit)
    u, v = (2 * column + 1).to(tl.float32) / w - 1, (2 * row + 1).to(tl.float32) / h - 1
    c = tl.arange(0, CUES)[None, :]
    cues = tl.where(c == 0, here[:, None], 0.0)
    cues = tl.where(c == 1, ((right - left) / 2)[:, None], cues)
    cues = tl.where(c == 2, ((below - above) / 2)[:, None], cues)
    cues = tl.where(c == 3, u[:, None], cues)
    cues = tl.where(c == 4, v[:, None], cues)
    at = (image * pixels + q)[:, None] * (CUES + REDUCED)
    tl.store(out + at + c, cues, mask=(q < pixels)[:, None])
    if REDUCED > 0:
        o = tl.arange(0, WIDE)[None, :]
        mask = (q < pixels)[:, None] & (o < REDUCED)
        total = tl.zeros((BLOCK, WIDE), tl.float32)
        top, bottom = row * hf // h, ((row + 1) * hf + h - 1) // h
        left, right = column * wf // w, ((column + 1) * wf + w - 1) // w
        there = projected + image * hf * wf * REDUCED + o
        for dv in tl.static_range(ROWS):
            for du in tl.static_range(COLUMNS):
                v, u = top + dv, left + du
                inside = ((v < bottom) & (u < right))[:, None] & mask
                value = tl.load(there + (v * wf + u)[:, None] * REDUCED, mask=inside, other=0.0)
                total += value.to(tl.float32)
        if ROWS > 0:
            share = tl.load(gain + image) / ((bottom - top) * (right - left)).to(tl.float32)
            total *= share[:, None]
        total += tl.load(shift + image * REDUCED + o, mask=o < REDUCED, other=0.0)
        tl.store(out + at + CUES + o, total, mask=mask)


@triton.jit
@no_type_check
def add_and_sum(
    x, bias, residual, out, sums, pixels,
    C: tl.constexpr, WIDE: tl.constexpr, PER_GROUP: tl.constexpr, ADD: tl.constexpr,
    KEEP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x + bias (+ residual), and each group's sums of it and of its square over a part."""
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c, group = tl.arange(0, WIDE), tl.arange(0, WIDE // PER_GROUP)
    add = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)
    first = tl.zeros((WIDE,), tl.float32)
    second = tl.zeros((WIDE,), tl.float32)
    for begin in range(0, SIZE, BLOCK):
        q = part * SIZE + begin + tl.arange(0, BLOCK)
        mask = (q < pixels)[:, None] & (c < C)
        at = (image * pixels + q)[:, None] * C + c
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) + add
        if ADD:
            value += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
        if KEEP:
            tl.store(out + at, value, mask=mask)
        value = tl.where(mask, value, 0.0)
        first += tl.sum(value, axis=0)
        second += tl.sum(value * value, axis=0)
    first = tl.sum(tl.reshape(first, (WIDE // PER_GROUP, PER_GROUP)), axis=1)
    second = tl.sum(tl.reshape(second, (WIDE // PER_GROUP, PER_GROUP)), axis=1)
    at = (image * tl.num_programs(0) + part) * 2 * (C // PER_GROUP) + group
    tl.store(sums + at, first, mask=group < C // PER_GROUP)
    tl.store(sums + at + C // PER_GROUP, second, mask=group < C // PER_GROUP)


@triton.jit
@no_type_check
def activate(
    x, bias, sums, weight, shift, out, h, w, border, parts, eps,
    C: tl.constexpr, WIDE: tl.constexpr, PER_GROUP: tl.constexpr, PARTS: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """GELU(norm(x + bias)) with a border."""
    image = tl.program_id(1).to(tl.int64)
    q, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    pixels = (h + 2 * border) * (w + 2 * border)
    row, column = _source(q, h, w, border)
    mask = (q < pixels)[:, None] & (c < C)
    at = ((image * h + row) * w + column)[:, None] * C + c
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)
    if NORM:
        gain, offset = _affine(
            sums, weight, shift, image, h * w, parts, eps, C, WIDE, PER_GROUP, PARTS
        )
        value = value * gain + offset
    exact: tl.constexpr = out.dtype.element_ty == tl.float32
    tl.store(out + (image * pixels + q)[:, None] * C + c, _gelu(value, exact), mask=mask)


@triton.jit
@no_type_check
def lay_beside(
    coarse, fine, out, hc, wc, h, w,
    C1: tl.constexpr, WIDE1: tl.constexpr, C2: tl.constexpr, WIDE2: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Coarse maps, interpolated, and fine ones, with a border of one."""
    image = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixels = (h + 2) * (w + 2)
    row, column = _source(q, h, w, 1)
    v0, v1, dv = _between(row, h, hc)
    u0, u1, du = _between(column, w, wc)
    c = tl.arange(0, WIDE1)
    mask = (q < pixels)[:, None] & (c < C1)
    there = coarse + image * hc * wc * C1 + c
    a = tl.load(there + (v0 * wc + u0)[:, None] * C1, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(there + (v0 * wc + u1)[:, None] * C1, mask=mask, other=0.0).to(tl.float32)
    upper = a + (b - a) * du[:, None]
    a = tl.load(there + (v1 * wc + u0)[:, None] * C1, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(there + (v1 * wc + u1)[:, None] * C1, mask=mask, other=0.0).to(tl.float32)
    lower = a + (b - a) * du[:, None]
    at = (image * pixels + q)[:, None]
    tl.store(out + at * (C1 + C2) + c, upper + (lower - upper) * dv[:, None], mask=mask)
    c = tl.arange(0, WIDE2)
    mask = (q < pixels)[:, None] & (c < C2)
    value = tl.load(fine + at * C2 + c, mask=mask, other=0.0)
    tl.store(out + at * (C1 + C2) + C1 + c, value, mask=mask)


@triton.jit
@no_type_check
def gate(
    x, bias, sums, weight, shift, basis, basis_bias, gating, gating_bias, out, pixels, parts, eps,
    C: tl.constexpr, WIDE: tl.constexpr, PER_GROUP: tl.constexpr, PARTS: tl.constexpr,
    K: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """E = softmax(gating head) ⊙ basis head of GELU(norm(x + bias)), as (b, k, h, w)."""
    image = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, k = tl.arange(0, WIDE), tl.arange(0, OUT)
    at = (image * pixels + q)[:, None] * C + c
    value = tl.load(x + at, mask=(q < pixels)[:, None] & (c < C), other=0.0).to(tl.float32)
    value += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)
    gain, offset = _affine(
        sums, weight, shift, image, pixels, parts, eps, C, WIDE, PER_GROUP, PARTS
    )
    at, mask = c[:, None] * OUT + k, (c < C)[:, None]
    to_basis = tl.load(basis + at, mask=mask, other=0.0)
    to_gating = tl.load(gating + at, mask=mask, other=0.0)
    exact: tl.constexpr = basis.dtype.element_ty == tl.float32
    shared = _gelu(value * gain + offset, exact).to(to_basis.dtype)
    primitive = tl.dot(shared, to_basis, input_precision="ieee") + tl.load(basis_bias + k)
    logits = tl.dot(shared, to_gating, input_precision="ieee") + tl.load(gating_bias + k)
    gates = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    maps = primitive * (gates / tl.sum(gates, axis=1)[:, None])
    at = (image * K + k)[None, :] * pixels + q[:, None]
    tl.store(out + at, maps, mask=(q < pixels)[:, None] & (k < K))


@triton.jit
@no_type_check
def apply(mde_depth, log_scale, out, height, width, h, w, BLOCK: tl.constexpr):
    """D · e^ℓ, with ℓ interpolated."""
    image = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = q < height * width
    v0, v1, dv = _between(q // width, height, h)
    u0, u1, du = _between(q % width, width, w)
    there = log_scale + image * h * w
    a = tl.load(there + v0 * w + u0, mask=mask, other=0.0)
    upper = a + (tl.load(there + v0 * w + u1, mask=mask, other=0.0) - a) * du
    a = tl.load(there + v1 * w + u0, mask=mask, other=0.0)
    lower = a + (tl.load(there + v1 * w + u1, mask=mask, other=0.0) - a) * du
    at = image * height * width + q
    depth = tl.load(mde_depth + at, mask=mask, other=0.0)
    tl.store(out + at, depth * tl.exp(upper + (lower - upper) * dv), mask=mask)


@triton.jit
@no_type_check
def _centred(there, level, limit):
    return tl.minimum(tl.maximum(tl.load(there) - level, -limit), limit)


@triton.jit
@no_type_check
def _gelu(x, EXACT: tl.constexpr):
    """x Φ(x). Exact: the error function by Abramowitz and Stegun 7.1.26, right to 1.5e-7. For half
    precision: Φ by a polynomial in x² that is right to 5e-5, in a third of the time."""
    if EXACT:
        z = tl.abs(x) * 0.7071067811865476
        t = 1 / (1 + 0.3275911 * z)
        poly = ((1.061405429 * t - 1.453152027) * t + 1.421413741) * t
        tail = ((poly - 0.284496736) * t + 0.254829592) * t * tl.exp(-z * z)  # 1 − erf(z)
        return x * tl.where(x < 0, 0.5 * tail, 1 - 0.5 * tail)
    z = tl.minimum(tl.maximum(x, -4.2), 4.2)
    t = z * z
    poly = ((4.923689e-11 * t - 4.795567e-9) * t + 2.072448e-7) * t - 5.289518e-6
    poly = ((poly * t + 8.983551e-5) * t - 1.086457e-3) * t + 9.740933e-3
    poly = (poly * t - 6.622207e-2) * t + 3.988346e-1
    return x * tl.minimum(tl.maximum(0.5 + z * poly, 0.0), 1.0)


@triton.jit
@no_type_check
def _affine(
    sums, weight, shift, image, pixels, parts, eps,
    C: tl.constexpr, WIDE: tl.constexpr, PER_GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Gain and shift of the norm for each channel of an image."""
    groups: tl.constexpr = C // PER_GROUP
    part, group, c = tl.arange(0, PARTS), tl.arange(0, WIDE // PER_GROUP), tl.arange(0, WIDE)
    at = (image * parts + part)[:, None] * 2 * groups + group
    mask = (part < parts)[:, None] & (group < groups)
    mean = tl.sum(tl.load(sums + at, mask=mask, other=0.0), axis=0) / (pixels * PER_GROUP)
    square = tl.sum(tl.load(sums + at + groups, mask=mask, other=0.0), axis=0)
    var = tl.maximum(square / (pixels * PER_GROUP) - mean * mean, 0.0)
    gain = 1 / tl.sqrt(var + eps)
    gain, mean = _each_channel(gain, WIDE, PER_GROUP), _each_channel(mean, WIDE, PER_GROUP)
    gain *= tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    return gain, tl.load(shift + c, mask=c < C, other=0.0).to(tl.float32) - mean * gain


@triton.jit
@no_type_check
def _each_channel(of_group, WIDE: tl.constexpr, PER_GROUP: tl.constexpr):
    spread = tl.broadcast_to(of_group[:, None], (WIDE // PER_GROUP, PER_GROUP))
    return tl.reshape(spread, (WIDE,))


@triton.jit
@no_type_check
def _source(q, h, w, border):
    """Source pixel of the pixel q of an image with a border."""
    wide = w + 2 * border
    row = tl.minimum(tl.maximum(q // wide - border, 0), h - 1)
    return row, tl.minimum(tl.maximum(q % wide - border, 0), w - 1)


@triton.jit
@no_type_check
def _between(i, fine, coarse):
    """The two coarse cells around a fine one, and how far it is from the first."""
    at = tl.maximum((i.to(tl.float32) + 0.5) * coarse / fine - 0.5, 0.0)
    low = tl.minimum(at.to(tl.int32), coarse - 1)
    return low, tl.minimum(low + 1, coarse - 1), at - low.to(tl.float32)
