#!/usr/bin/env python3
"""Writes ir/src/format/grids/data.rs: the tables of grid formats, packed."""
import textwrap

from gguf import quants
out = ['''//! Tables of the grids, which `ir/tests/formats/grids.py` writes. No formula gives them.
//!
//! From ggml's `ggml-common.h` through the Python package `gguf` 0.19, which stores each number as
//! an index into its grid's magnitudes. Both are under the MIT licence, Copyright (c) 2023-2026 The
//! ggml authors:
//!
//! ```text
//! Permission is hereby granted, free of charge, to any person obtaining a copy of this software
//! and associated documentation files (the "Software"), to deal in the Software without
//! restriction, including without limitation the rights to use, copy, modify, merge, publish,
//! distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
//! Software is furnished to do so, subject to the following conditions: The above copyright
//! notice and this permission notice shall be included in all copies or substantial portions of
//! the Software. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
//! IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A
//! PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE
//! LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
//! OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER
//! DEALINGS IN THE SOFTWARE.
//! ```
''']
for name in ("IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S"):
    c = getattr(quants, name); c.init_grid()
    n, length = c.grid_shape
    grid = c.grid.reshape(n, length).astype(int)
    values = list(c.grid_map)
    bits = 3 if length == 4 else 2
    packed = [sum(values.index(v) << (bits * j) for j, v in enumerate(row)) for row in grid]
    magnitudes = ", ".join(map(str, values))
    words = f'{name.lower()}: {n} entries of {length} numbers in {bits} bits each, the first lowest: indices into {magnitudes}.'
    out += [f'/// {line}' for line in textwrap.wrap(words, 96)]
    out.append('#[rustfmt::skip]')
    out.append(f'pub const {name}: [u16; {n}] = [')
    for i in range(0, n, 20):
        out.append('    ' + ' '.join(f'{w:#06x},' for w in packed[i:i+20]))
    out.append('];\n')
print('\n'.join(out).rstrip())
