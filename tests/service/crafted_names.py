"""Names whose CRC-32 is what one likes: CRC-32 is affine, so nine letters reach any value."""

import zlib

import numpy as np

LETTERS = 9  # of 16 letters each: 36 bits, by a linear system of 32 equations over GF(2)
FIRST = ord("`")  # its code and those of the 15 letters behind it differ in their last four bits only
MULTIPLIER = 0x9E3779B1  # by which keys were once spread over the slots of tables


def names_with(hashes, prefix="f="):
    """Return names that begin with ``prefix`` and have these CRC-32s."""
    base = zlib.crc32((prefix + chr(FIRST) * LETTERS).encode())
    pivots = {}  # by leading bit: a value, and the letters' bits that make it
    for bit in range(4 * LETTERS):
        value, letters = zlib.crc32(_name(prefix, 1 << bit).encode()) ^ base, 1 << bit
        while value:
            lead = value.bit_length()
            if lead not in pivots:
                pivots[lead] = value, letters
                break
            value, letters = value ^ pivots[lead][0], letters ^ pivots[lead][1]
    names = []
    for wanted in hashes:
        value, letters = int(wanted) ^ base, 0
        while value:
            other, bits = pivots[value.bit_length()]
            value, letters = value ^ other, letters ^ bits
        names.append(_name(prefix, letters))
    return names


def _name(prefix, bits):
    return prefix + "".join(chr(FIRST + (bits >> 4 * k & 15)) for k in range(LETTERS))


def equal_last_bits(n):
    """Return n hashes with the same 16 last bits, by which tables of single requests once found their slots."""
    return (np.arange(1, n + 1, dtype=np.uint64) << np.uint64(16) | np.uint64(0x1234)).astype(np.uint32)


def equal_products(n, shift):
    """Return n hashes whose products with the multiplier are equal from bit ``shift`` on, up to bit 30."""
    inverse = pow(MULTIPLIER, -1, 1 << 32)
    low = 1 << shift
    products = [(k // low % 4) << 30 | (5 + k // (4 * low)) << shift | k % low for k in range(n)]
    return np.array([product * inverse % (1 << 32) for product in products], np.uint32)
