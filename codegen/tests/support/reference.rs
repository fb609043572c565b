//! Formulas in f64 of the kernels that have one, from the same inputs.
//!
//! Bounds: a sum of `k` f32 products is within `k * 2^-24` of the sum of magnitudes (Higham, accuracy of inner products); the
//! fixed 2e-6 covers exp (2e-7 relative) and the few operations around it.

use half::f16;
use ixc_ir::format::Format;
use ixc_ir::graph::quantise::quantise;
use ixc_ir::kernel::Kernel;
use ixc_kernels::{Bits, Elementwise, KernelSpec, Score};

const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
const EXP_BOUND: f64 = 2e-6;

struct Buffers<'a> {
    kernel: &'a Kernel,
    data: &'a [Vec<u8>],
}

impl Buffers<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.kernel.buffers.iter().position(|b| b.name == name).map(|i| self.data[i].as_slice())
    }

    fn floats(&self, name: &str) -> Vec<f64> {
        floats(self.get(name).unwrap_or_else(|| panic!("no buffer {name}")))
    }

    fn rows(&self, name: &str, format: Format) -> Vec<f64> {
        let bytes = self.get(name).unwrap_or_else(|| panic!("no buffer {name}"));
        let mut out = vec![0f32; bytes.len() / format.block_bytes() * format.block_len()];
        format.dequantise(bytes, &mut out);
        out.into_iter().map(f64::from).collect()
    }

    /// The rows of a weight, which are `k` long; where it is packed, strip by strip.
    fn weight(&self, name: &str, format: Format, k: usize) -> Vec<f64> {
        let bytes = self.get(name).unwrap_or_else(|| panic!("no buffer {name}"));
        let strip = format.rows() * k / format.block_len() * format.block_bytes();
        let mut out = vec![0f32; bytes.len() / strip * format.rows() * k];
        for (bytes, out) in bytes.chunks_exact(strip).zip(out.chunks_exact_mut(format.rows() * k)) {
            format.dequantise(bytes, out);
        }
        out.into_iter().map(f64::from).collect()
    }

    fn halves(&self, name: &str) -> Vec<f64> {
        let bytes = self.get(name).unwrap_or_else(|| panic!("no buffer {name}"));
        bytes.chunks_exact(2).map(|c| f16::from_le_bytes([c[0], c[1]]).to_f64()).collect()
    }
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|c| f64::from(f32::from_le_bytes([c[0], c[1], c[2], c[3]]))).collect()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|c| i32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

fn close(name: &str, what: &str, found: f64, right: f64, bound: f64) {
    assert!((found - right).abs() <= bound, "{name}: {what}: {found}, must be {right} within {bound:e}");
}

/// Sum and sum of magnitudes of products.
fn dot(x: &[f64], w: &[f64]) -> (f64, f64) {
    x.iter().zip(w).fold((0.0, 0.0), |(s, m), (x, w)| (s + x * w, m + (x * w).abs()))
}

/// Half a step of a quantiser, for a block whose largest magnitude is `amax`: 127 steps, or 16 bits.
fn step(format: Format, amax: f64) -> f64 {
    match format {
        Format::F32 => 0.0,
        Format::Bf16x2 => amax / 65536.0,
        _ => amax / 127.0 * 0.501,
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Compares what the interpreter left with the formula, where there is one.
pub fn compare(spec: &KernelSpec, dims: &[i64], kernel: &Kernel, before: &[Vec<u8>], after: &[Vec<u8>]) {
    let name = spec.name();
    let (input, output) = (Buffers { kernel, data: before }, Buffers { kernel, data: after });
    let rows = spec.product().map_or(0, |(shape, format)| shape.rows(format, dims) as usize);
    match spec {
        KernelSpec::Linear { format, x, k, tile, n, .. } => {
            let (k, tile, n) = (*k as usize, *tile as usize, *n as usize);
            let (x, w, y) = (input.rows("x", *x), input.weight("w", *format, k), output.floats("y"));
            let bias = input.get("bias").map(floats);
            let residual = input.get("residual").map(floats);
            for r in 0..rows {
                for c in 0..tile {
                    let (sum, magnitude) = dot(&x[r * k..][..k], &w[c * k..][..k]);
                    let added = bias.as_ref().map_or(0.0, |b| b[c]) + residual.as_ref().map_or(0.0, |v| v[r * n + c]);
                    // Minimums and offsets are subtracted from sums of up to four times the magnitude.
                    let bound = (magnitude + added.abs() + 1.0) * k as f64 * UNIT * 4.0;
                    close(&name, &format!("y[{r}, {c}]"), y[r * n + c], sum + added, bound);
                }
            }
        }
        KernelSpec::Swiglu { gate, up, x, k, tile, n, out, .. } => {
            let (k, tile, n) = (*k as usize, *tile as usize, *n as usize);
            let x = input.rows("x", *x);
            let (g, u) = (input.weight("gate", *gate, k), input.weight("up", *up, k));
            let bytes = output.get("y").unwrap_or_default();
            let (row, part) = (n / out.block_len() * out.block_bytes(), tile / out.block_len() * out.block_bytes());
            for r in 0..rows {
                let mut y = vec![0f32; tile];
                out.dequantise(&bytes[r * row..][..part], &mut y);
                let x = &x[r * k..][..k];
                let right: Vec<f64> =
                    (0..tile).map(|c| silu(dot(x, &g[c * k..][..k]).0) * dot(x, &u[c * k..][..k]).0).collect();
                for (c, y) in y.iter().enumerate() {
                    let block = &right[c / out.block_len() * out.block_len()..][..out.block_len()];
                    let amax = block.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                    // The quantiser's rounding and the products'.
                    let step = step(*out, amax);
                    close(&name, &format!("y[{r}, {c}]"), f64::from(*y), right[c], step + (amax + 1.0) * 1e-4);
                }
            }
        }
        KernelSpec::Embed { format, n, .. } => {
            let row = ints(input.get("id").unwrap_or_default())[0] as usize;
            let table = input.rows("table", *format);
            for (i, y) in output.floats("y").iter().enumerate() {
                let right = table[row * *n as usize + i];
                close(&name, &format!("y[{i}]"), *y, right, right.abs() * 4.0 * UNIT + 1e-6);
            }
        }
        KernelSpec::Quantise { out, .. } => {
            let x: Vec<f32> = input.floats("x").iter().map(|x| *x as f32).collect();
            assert_eq!(output.get("y"), Some(quantise(*out, &x).as_slice()), "{name}");
        }
        KernelSpec::RmsNorm { n, eps, out } => {
            let sum = input.floats("x").iter().map(|x| x * x).sum();
            normed(&name, &input, &output, (sum, *n), *eps, *out);
        }
        KernelSpec::RmsNormPiece { row, eps, out, .. } => {
            let sum = input.floats("sums").iter().sum();
            normed(&name, &input, &output, (sum, *row), *eps, *out);
        }
        KernelSpec::SumSquares { .. } => {
            let right: f64 = input.floats("x").iter().map(|x| x * x).sum();
            close(&name, "y", output.floats("y")[0], right, right * 1e-5);
        }
        KernelSpec::Map { function, .. } => {
            let a = input.floats("a");
            for (i, y) in output.floats("y").iter().enumerate() {
                let right = match function {
                    Elementwise::Add => a[i] + input.floats("b")[i],
                    Elementwise::Mul => a[i] * input.floats("b")[i],
                    Elementwise::Silu => silu(a[i]),
                };
                close(&name, &format!("y[{i}]"), *y, right, (right.abs() + 1e-3) * EXP_BOUND);
            }
        }
        KernelSpec::AddBias { .. } => {
            let (x, bias) = (input.floats("x"), input.floats("bias"));
            for (i, y) in output.floats("y").iter().enumerate() {
                assert_eq!(*y, f64::from((x[i] + bias[i]) as f32), "{name}: y[{i}]");
            }
        }
        KernelSpec::Softmax { .. } => {
            let x = input.floats("logits");
            let factor = input.floats("inverse_temperature")[0];
            let max = x.iter().copied().fold(f64::MIN, f64::max);
            let e: Vec<f64> = x.iter().map(|x| ((x - max) * factor).exp()).collect();
            let sum: f64 = e.iter().sum();
            for (i, y) in output.floats("y").iter().enumerate() {
                close(&name, &format!("y[{i}]"), *y, e[i] / sum, e[i] / sum * 1e-5 + 1e-9);
            }
        }
        KernelSpec::Route { top_k, score, normalise, scale, .. } => {
            let x = input.floats("logits");
            let max = x.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
            let scored: Vec<f64> = x
                .iter()
                .map(|x| match score {
                    Score::Softmax => (x - max).exp() / sum,
                    Score::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                })
                .collect();
            let mut order: Vec<usize> = (0..x.len()).collect();
            order.sort_by(|a, b| scored[*b].total_cmp(&scored[*a]));
            let best = &order[..*top_k as usize];
            let ids = ints(output.get("ids").unwrap_or_default());
            assert_eq!(ids, best.iter().map(|i| *i as i32).collect::<Vec<_>>(), "{name}");
            let total: f64 = best.iter().map(|i| scored[*i]).sum();
            let factor = f64::from(scale.value()) / if *normalise { total } else { 1.0 };
            for (slot, p) in output.floats("p").iter().enumerate() {
                let right = scored[best[slot]] * factor;
                close(&name, &format!("p[{slot}]"), *p, right, right * 1e-5);
            }
        }
        KernelSpec::Gather { bytes } => {
            let row = ints(input.get("row").unwrap_or_default())[0] as usize;
            let bytes = *bytes as usize;
            assert_eq!(output.get("y"), input.get("x").map(|x| &x[row * bytes..][..bytes]), "{name}");
        }
        KernelSpec::Combine { n, .. } => {
            let n = *n as usize;
            let (x, p) = (input.floats("x"), input.floats("p"));
            let slots = ints(input.get("slot").unwrap_or_default());
            let residual = input.get("residual").map(floats);
            for (i, y) in output.floats("y").iter().enumerate() {
                let base = residual.as_ref().map_or(0.0, |r| r[i]);
                let right = slots.iter().zip(&p).fold(base, |s, (slot, p)| s + p * x[*slot as usize * n + i]);
                close(&name, &format!("y[{i}]"), *y, right, 32.0 * UNIT * 8.0);
            }
        }
        KernelSpec::Attention { group, d, dv, scale, heads, .. } => {
            let (group, d, dv, heads) = (*group as usize, *d as usize, *dv as usize, *heads as usize);
            let (q, y) = (input.floats("q"), output.floats("y"));
            for (r, own) in ints(input.get("position").unwrap_or_default()).into_iter().enumerate() {
                for h in 0..group {
                    let q = &q[(r * heads * group + h) * d..][..d];
                    let (_, sum, acc) = attended(&input, q, dv, scale.value(), 0, own as usize);
                    for (e, acc) in acc.iter().enumerate() {
                        let found = y[(r * heads * group + h) * dv + e];
                        close(&name, &format!("y[{r}, {h}, {e}]"), found, acc / sum, 1e-4);
                    }
                }
            }
        }
        KernelSpec::AttentionPart { group, d, dv, scale } => {
            let (group, d, dv) = (*group as usize, *d as usize, *dv as usize);
            let own = ints(input.get("position").unwrap_or_default())[0] as usize;
            let (q, part) = (input.floats("q"), output.floats("part"));
            for h in 0..group {
                let first = 32 * dims[2] as usize;
                let (max, sum, acc) = attended(&input, &q[h * d..][..d], dv, scale.value(), first, own);
                let part = &part[h * (dv + 2)..][..dv + 2];
                close(&name, &format!("maximum {h}"), part[dv], max, 1e-4);
                close(&name, &format!("sum {h}"), part[dv + 1], sum, 1e-4 * sum);
                for (e, acc) in acc.iter().enumerate() {
                    close(&name, &format!("part[{h}, {e}]"), part[e], *acc, 1e-4 * sum);
                }
            }
        }
        KernelSpec::AttentionCombine { group, dv, .. } => {
            let (group, dv) = (*group as usize, *dv as usize);
            let (parts, y) = (input.floats("parts"), output.floats("y"));
            let parts: Vec<&[f64]> = parts.chunks_exact(group * (dv + 2)).collect();
            assert_eq!(parts.len(), dims[0] as usize);
            for h in 0..group {
                let head = h * (dv + 2);
                let max = parts.iter().map(|part| part[head + dv]).fold(f64::MIN, f64::max);
                let factors: Vec<f64> = parts.iter().map(|part| (part[head + dv] - max).exp()).collect();
                let total = |at: usize| parts.iter().zip(&factors).map(|(part, f)| part[at] * f).sum::<f64>();
                // Sums of weights, which are not as random as the row's are.
                let sum = total(head + dv + 1);
                for e in 0..dv {
                    let right = total(head + e) / sum;
                    close(&name, &format!("y[{h}, {e}]"), y[h * dv + e], right, 1e-5 * right.abs().max(1.0));
                }
            }
        }
        KernelSpec::RopeHeads { .. } | KernelSpec::RopeAppend { .. } => rope(spec, &input, &output),
    }
}

/// `x * w / sqrt(sum / row + eps)`, where `sum` is that of the squares of a row of `row` elements.
fn normed(name: &str, input: &Buffers<'_>, output: &Buffers<'_>, (sum, row): (f64, u32), eps: Bits, out: Format) {
    let (x, w) = (input.floats("x"), input.floats("w"));
    let scale = 1.0 / (sum / f64::from(row) + f64::from(eps.value())).sqrt();
    let y = output.rows("y", out);
    let right: Vec<f64> = x.iter().zip(&w).map(|(x, w)| x * scale * w).collect();
    let amax = right.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    let step = step(out, amax);
    for (i, (y, right)) in y.iter().zip(&right).enumerate() {
        close(name, &format!("y[{i}]"), *y, *right, step + (amax + 1e-3) * 1e-5);
    }
}

/// Maximum of the scores, and sums of weights and weighted values, of a query over the positions `first..=own`, of which the
/// first is the first one in the buffers.
fn attended(input: &Buffers<'_>, q: &[f64], dv: usize, scale: f32, first: usize, own: usize) -> (f64, f64, Vec<f64>) {
    let (d, keys, values) = (q.len(), input.halves("keys"), input.halves("values"));
    let positions = 0..own + 1 - first;
    let key = |p: usize, e: usize| keys[(p / 16 * d + e) * 16 + p % 16];
    let score = |p: usize| (0..d).map(|e| q[e] * key(p, e)).sum::<f64>() * f64::from(scale);
    let scores: Vec<f64> = positions.clone().map(score).collect();
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let acc = (0..dv).map(|e| positions.clone().map(|p| weights[p] * values[p * dv + e]).sum()).collect();
    (max, weights.iter().sum(), acc)
}

fn rope(spec: &KernelSpec, input: &Buffers<'_>, output: &Buffers<'_>) {
    use ixc_ir::plan::RopeStyle;
    let name = spec.name();
    let (heads, d, dims, style, norm, x) = match spec {
        KernelSpec::RopeHeads { heads, d, dims, style, norm } => (*heads, *d, *dims, *style, *norm, input.floats("x")),
        KernelSpec::RopeAppend { d, dims, style, norm, .. } => (1, *d, *dims, *style, *norm, input.floats("k")),
        other => unreachable!("{} is no rotation", other.name()),
    };
    let (d, dims) = (d as usize, dims as usize);
    let (block, lane) = (
        ints(input.get("block").unwrap_or_default())[0] as usize,
        ints(input.get("lane").unwrap_or_default())[0] as usize,
    );
    let row = style.row_bytes(dims as u32) as usize / 4;
    let table = &input.floats("table")[(16 * block + lane) * row..][..row];
    for h in 0..heads as usize {
        let mut v = x[h * d..][..d].to_vec();
        if let Some(eps) = norm {
            let mean = v.iter().map(|x| x * x).sum::<f64>() / d as f64;
            let scale = 1.0 / (mean + f64::from(eps.value())).sqrt();
            let w = input.floats("norm");
            v = v.iter().zip(&w).map(|(x, w)| x * scale * w).collect();
        }
        let rotated: Vec<f64> = (0..d)
            .map(|i| match style {
                _ if i >= dims => v[i],
                RopeStyle::Neox if i < dims / 2 => v[i] * table[i] - v[i + dims / 2] * table[i + dims / 2],
                RopeStyle::Neox => v[i] * table[i - dims / 2] + v[i - dims / 2] * table[i],
                RopeStyle::Norm => v[i] * table[i] + v[i ^ 1] * table[dims + i],
            })
            .collect();
        for (i, right) in rotated.iter().enumerate() {
            match spec {
                KernelSpec::RopeAppend { dv, .. } => {
                    // Half precision: 11 bits.
                    let bound = right.abs() / 2048.0 + 1e-4;
                    close(
                        &name,
                        &format!("key {i}"),
                        output.halves("keys")[(block * d + i) * 16 + lane],
                        *right,
                        bound,
                    );
                    let dv = *dv as usize;
                    if i < dv {
                        let value = input.floats("v")[i];
                        let found = output.halves("values")[(16 * block + lane) * dv + i];
                        close(&name, &format!("value {i}"), found, value, value.abs() / 2048.0 + 1e-4);
                    }
                }
                _ => close(&name, &format!("y[{h}, {i}]"), output.floats("y")[h * d + i], *right, 1e-5),
            }
        }
    }
}
