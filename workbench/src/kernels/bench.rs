//! Speed of a kernel on this machine: time per call with its spread, weight bytes and operations
//! per second. Rates are also given as shares of the machine's memory bandwidth and peak.
//!
//! Each thread calls the kernel repeatedly with its own buffers. All threads start a round
//! together, and a round ends when the last thread has finished. There are two cases. With the same
//! buffers in every call, the data stays in the caches. With more sets of buffers than any cache
//! holds, weights come from memory, as in decode.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ixc_codegen::module::{Bound, Module};
use ixc_ir::kernel::{Elem, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_kernels::catalogue::inputs;
use ixc_kernels::generator::work::{Arithmetic, Work, work};
use ixc_targets::Target;
use serde::Serialize;

use super::KernelError;
use super::run::Case;
use crate::Error;
use ixc_compile::machine::bandwidth;

/// Min duration of a round, so that clocks and barriers do not matter.
const ROUND_SECONDS: f64 = 0.02;
/// Rounds of warm-up, which fill caches, raise the clock rate and take page faults.
const WARM_UP: u32 = 2;
/// Max bytes of all alternating sets of buffers, over all threads.
const MAX_BYTES: usize = 1 << 30;

/// Memory level of a kernel's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLevel {
    /// The caches, if the buffers fit.
    Caches,
    /// The weights are read from memory.
    Memory,
}

/// Seconds per call: the median of the rounds and their spread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seconds {
    /// Median over the rounds.
    pub median: f64,
    /// Fastest round.
    pub min: f64,
    /// Slowest round.
    pub max: f64,
    /// Half of the distance between the quartiles of the rounds, as a share of the median.
    pub spread: f64,
    /// Number of rounds.
    pub rounds: usize,
    /// Calls of each thread in a round.
    pub calls: u64,
}

impl Seconds {
    /// Returns the statistics of at least one round.
    fn from_rounds(mut rounds: Vec<f64>, calls: u64) -> Seconds {
        rounds.sort_by(f64::total_cmp);
        let at = |share: f64| rounds[((rounds.len() - 1) as f64 * share).round() as usize];
        let median = at(0.5);
        Seconds {
            median,
            min: at(0.0),
            max: at(1.0),
            spread: (at(0.75) - at(0.25)) / 2.0 / median,
            rounds: rounds.len(),
            calls,
        }
    }
}

/// Measurement of a kernel at one memory level with one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Memory level of the kernel's buffers.
    pub place: MemoryLevel,
    /// Number of threads.
    pub threads: usize,
    /// Seconds of a call.
    pub seconds: Seconds,
    /// Weight bytes per second of all threads, by the median.
    pub bytes_per_second: f64,
    /// Operations per second, two for each multiply-add; `None` if the kernel has none.
    pub operations_per_second: Option<f64>,
}

/// Returns the bytes and multiply-adds of a call.
pub fn call_work(case: &Case) -> Work {
    work(&case.chosen.kernel, case.chosen.spec.as_ref(), &case.dims)
}

/// Measures a kernel with its inputs in `rounds` rounds, after a warm-up.
///
/// # Errors
/// If this machine cannot run the case.
pub fn measure(case: &Case, place: MemoryLevel, threads: usize, rounds: u32) -> Result<Measurement, Error> {
    let threads = threads.max(1);
    let module = Module::compile(std::slice::from_ref(&case.chosen.kernel), case.chosen.target)?;
    let (work, sets) = (call_work(case), buffer_sets(case, place, threads));
    let seconds = time_rounds(&module, &case.dims, &case.before, sets, threads, rounds);
    let rate = |units: u64| units as f64 * threads as f64 / seconds.median;
    let operations_per_second = (work.multiply_adds > 0).then(|| rate(2 * work.multiply_adds));
    Ok(Measurement { place, threads, bytes_per_second: rate(work.bytes), operations_per_second, seconds })
}

/// Returns the number of alternating sets of buffers for each thread.
fn buffer_sets(case: &Case, place: MemoryLevel, threads: usize) -> usize {
    match place {
        MemoryLevel::Caches => 1,
        MemoryLevel::Memory => {
            let all: usize = case.before.iter().map(Vec::len).sum::<usize>().max(1);
            let weights = usize::try_from(call_work(case).bytes).unwrap_or(all).max(1);
            let wanted = (bandwidth::BUFFER_BYTES / threads).div_ceil(weights);
            wanted.min((MAX_BYTES / threads / all).max(1)).max(2)
        }
    }
}

/// Measures two kernels alternately on one thread, and returns seconds per call for each round. If
/// the machine is slow for a while, both are slower.
///
/// # Errors
/// If this machine cannot run the kernels.
pub fn in_turn(cases: [&Case; 2], place: MemoryLevel, rounds: u32) -> Result<Vec<[f64; 2]>, Error> {
    let compile = |case: &Case| -> Result<Module, Error> {
        Ok(Module::compile(std::slice::from_ref(&case.chosen.kernel), case.chosen.target)?)
    };
    let modules = [compile(cases[0])?, compile(cases[1])?];
    let mut buffers = cases.map(|case| vec![case.before.clone(); buffer_sets(case, place, 2)]);
    let [first, second] = &mut buffers;
    let mut bound = [bind(&modules[0], cases[0], first), bind(&modules[1], cases[1], second)];
    let mut turns = [0; 2];
    let mut seconds = |side: usize, times: u64| {
        let begin = Instant::now();
        for _ in 0..times {
            bound[side][turns[side]].call();
            turns[side] = (turns[side] + 1) % bound[side].len();
        }
        begin.elapsed().as_secs_f64()
    };
    let times = [0, 1].map(|side| {
        let mut times = 1;
        // Double the calls until a round is long enough.
        while seconds(side, times) < ROUND_SECONDS && times < 1 << 40 {
            times *= 2;
        }
        times
    });
    let mut round = || [0, 1].map(|side| seconds(side, times[side]) / times[side] as f64);
    (0..WARM_UP).for_each(|_| {
        black_box(round());
    });
    Ok((0..rounds.max(1)).map(|_| round()).collect())
}

fn bind<'a>(module: &'a Module, case: &Case, sets: &'a mut [Vec<Vec<u8>>]) -> Vec<Bound<'a>> {
    let bound = sets.iter_mut().map(|set| module.bind(0, &case.dims, set));
    bound.map(|bound| bound.unwrap_or_else(|error| unreachable!("inputs of this kernel: {error}"))).collect()
}

fn time_rounds(module: &Module, dims: &[i64], before: &[Vec<u8>], sets: usize, threads: usize, rounds: u32) -> Seconds {
    let (start, finish) = (Barrier::new(threads), Barrier::new(threads));
    let calls = AtomicU64::new(1);
    let work = |leader: bool| {
        // The thread that uses the buffers allocates them, so that they are on its own memory node.
        let mut buffers: Vec<Vec<Vec<u8>>> = (0..sets).map(|_| before.to_vec()).collect();
        let mut bound: Vec<_> = buffers
            .iter_mut()
            .map(|set| module.bind(0, dims, set).unwrap_or_else(|error| unreachable!("inputs of this kernel: {error}")))
            .collect();
        let mut turn = 0;
        let mut call = |times: u64| {
            for _ in 0..times {
                bound[turn].call();
                turn += 1;
                if turn == sets {
                    turn = 0;
                }
            }
        };
        if leader {
            // Double the calls until a round is long enough.
            let mut times = 1;
            loop {
                let begin = Instant::now();
                call(times);
                if begin.elapsed().as_secs_f64() >= ROUND_SECONDS || times >= 1 << 40 {
                    break;
                }
                times *= 2;
            }
            calls.store(times, Ordering::Relaxed);
        }
        start.wait();
        let times = calls.load(Ordering::Relaxed);
        let mut seconds = Vec::new();
        for round in 0..WARM_UP + rounds.max(1) {
            start.wait();
            let begin = Instant::now();
            call(black_box(times));
            finish.wait();
            if round >= WARM_UP {
                seconds.push(begin.elapsed().as_secs_f64() / times as f64);
            }
        }
        seconds
    };
    let seconds = std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| work(false));
        }
        work(true)
    });
    Seconds::from_rounds(seconds, calls.into_inner())
}

/// The machine's peak of one kind of operations per second. It is the rate of the fastest of a few
/// loops that do nothing else.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// Number of threads.
    pub threads: usize,
    /// Operations per second, two for each multiply-add.
    pub operations_per_second: f64,
    /// The loop's seconds, with their spread.
    pub seconds: Seconds,
}

/// Measures the peak of a kind of arithmetic; `None` if the target has no loop for it.
///
/// # Errors
/// If this machine cannot run the target's code.
pub fn peak(arithmetic: Arithmetic, target: Target, threads: usize, rounds: u32) -> Result<Option<Peak>, Error> {
    let mut best: Option<Peak> = None;
    for Loop { kernel, multiply_adds } in loops(arithmetic, target) {
        let module = Module::compile(std::slice::from_ref(&kernel), target)?;
        // Zeros, since denormal numbers would slow a loop down.
        let sizes = inputs::sizes(&kernel, &[]).map_err(KernelError::from)?;
        let before: Vec<Vec<u8>> = sizes.into_iter().map(|size| vec![0; size]).collect();
        let seconds = time_rounds(&module, &[], &before, 1, threads.max(1), rounds);
        let operations_per_second = (2 * multiply_adds) as f64 * threads.max(1) as f64 / seconds.median;
        if best.as_ref().is_none_or(|best| best.operations_per_second < operations_per_second) {
            best = Some(Peak { threads: threads.max(1), operations_per_second, seconds });
        }
    }
    Ok(best)
}

/// A loop that contains only multiply-adds.
struct Loop {
    kernel: Kernel,
    multiply_adds: u64,
}

/// Vectors of weights in a loop, few enough for the first-level cache.
const VECTORS: i64 = 64;
/// Repetitions of the loop.
const TIMES: i64 = 64;
/// Number of independent sums. It is more than the latency times the instructions per cycle, and
/// less than the number of registers.
const SUMS: usize = 12;

fn loops(arithmetic: Arithmetic, target: Target) -> Vec<Loop> {
    let (bytes, has_tiles) = (target.isa().vector_bytes as u16, target.isa().tile_registers > 0);
    match arithmetic {
        Arithmetic::F32 => {
            let ty = Type::f32(bytes / 4);
            vec![products("peak_fma", ty, ty, |b, sum, w, x| b.fma(w, x, sum))]
        }
        Arithmetic::Int8 => {
            let bytes = Type::i8(bytes);
            let mut loops = vec![
                products("peak_dot2", bytes, Type::i16(bytes.lanes / 2), |b, sum, w, x| {
                    let dot = b.op(Op::Dot2U8S8, b.ty(sum), &[w, x]);
                    b.iadd(sum, dot)
                }),
                products("peak_dot4", bytes, Type::i32(bytes.lanes / 4), |b, sum, w, x| {
                    b.op(Op::Dot4U8S8, b.ty(sum), &[sum, w, x])
                }),
            ];
            loops.extend(has_tiles.then(|| tile_products("peak_tile_int8", Op::TileDotS8U8, Elem::I8, Elem::I32)));
            loops
        }
        Arithmetic::Bf16 => {
            let tiles = has_tiles.then(|| tile_products("peak_tile_bf16", Op::TileDotBf16, Elem::Bf16, Elem::F32));
            let pairs = target.has_dot2_bf16().then(|| {
                products("peak_dot2_bf16", Type::bf16(bytes / 2), Type::f32(bytes / 4), |b, sum, w, x| {
                    b.dot2_bf16(sum, w, x)
                })
            });
            pairs.into_iter().chain(tiles).collect()
        }
    }
}

/// Function that adds a step of a loop, from the builder, a sum, weights and activations.
type Step = fn(&mut KernelBuilder, ValueId, ValueId, ValueId) -> ValueId;

/// Returns a loop that multiplies vectors of weights by one vector of activations. Each weight
/// vector is loaded once for all sums, so that loads are not the limit.
fn products(name: &str, weights: Type, sum: Type, step: Step) -> Loop {
    let mut b = KernelBuilder::new(name);
    let width = i64::from(weights.bytes());
    let w = b.read("w", VECTORS * width);
    let x = b.read("x", width);
    let y = b.write("y", SUMS as i64 * width);
    let zero = if sum.elem == Elem::F32 { b.splat_f32(sum.lanes, 0.0) } else { b.splat_int(sum, 0) };
    let activations = b.load(weights, x, 0);
    let sums = b.for_carry("t", TIMES, &[zero; SUMS], |b, _, sums| {
        b.for_carry("i", VECTORS, sums, |b, i, sums| {
            let loaded = b.load(weights, w, i * width);
            sums.iter().map(|&sum| step(b, sum, loaded, activations)).collect()
        })
    });
    for (i, sum) in sums.into_iter().enumerate() {
        b.store(y, i as i64 * width, sum);
    }
    let multiply_adds = u64::from(weights.lanes) * (TIMES * VECTORS) as u64 * SUMS as u64;
    Loop { kernel: b.finish(), multiply_adds }
}

/// Returns a loop of two by two tiles with four sums. These are enough to hide a product's latency.
fn tile_products(name: &str, op: Op, factor: Elem, sum: Elem) -> Loop {
    const TILE: i64 = 1024;
    const LINE: i64 = 64;
    let columns = LINE / i64::from(factor.bytes());
    let (ty, sum) = (Type::tile(factor, 16, columns as u16), Type::tile(sum, 16, 16));
    let mut b = KernelBuilder::new(name);
    let (w, x) = (b.read("w", 2 * TILE), b.read("x", 2 * TILE));
    let y = b.write("y", 4 * TILE);
    let [w, x] = [w, x].map(|buffer| [0, TILE].map(|at| b.tile_load(ty, buffer, at, LINE)));
    let zeros: Vec<ValueId> = (0..4).map(|_| b.tile_zero(sum)).collect();
    let pairs = || x.iter().flat_map(|x| w.iter().map(move |w| (*x, *w)));
    let trips = TIMES * VECTORS;
    let sums = b.for_carry("t", trips, &zeros, |b, _, sums| {
        sums.iter().zip(pairs()).map(|(&sum, (x, w))| b.tile_dot(op, sum, x, w)).collect()
    });
    for (i, sum) in sums.into_iter().enumerate() {
        b.tile_store(y, i as i64 * TILE, sum, LINE);
    }
    Loop { kernel: b.finish(), multiply_adds: (trips * 4 * 16 * 16 * columns).unsigned_abs() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::choose::choose;
    use crate::kernels::run::Sizes;

    #[test]
    fn rates_follow_from_the_median() {
        let chosen = choose("linear format=q4_k k=256 tile=8 n=8 shape=gemv", Target::native()).unwrap();
        let case = Case::new(chosen, Some(Sizes::Rows(1)), 0).unwrap();
        for place in [MemoryLevel::Caches, MemoryLevel::Memory] {
            let measured = measure(&case, place, 2, 3).unwrap();
            let seconds = &measured.seconds;
            assert!(seconds.min <= seconds.median && seconds.median <= seconds.max && seconds.rounds == 3);
            assert_eq!(measured.bytes_per_second, (8 * 144 * 2) as f64 / seconds.median);
            assert_eq!(measured.operations_per_second, Some((2 * 8 * 256 * 2) as f64 / seconds.median));
        }
    }

    #[test]
    fn peak_loops_compile_without_spills() {
        for arithmetic in [Arithmetic::F32, Arithmetic::Int8] {
            let peak = peak(arithmetic, Target::native(), 1, 2).unwrap().unwrap();
            assert!(peak.operations_per_second > 0.0);
            // Without VNNI, products of four bytes take several instructions, and the loop with
            // products of two is the fastest.
            let zen4 = Target::from_name("zen4").unwrap();
            for (target, loops) in
                [(Target::AVX2, &loops(arithmetic, Target::AVX2)[..1]), (zen4, &loops(arithmetic, zen4))]
            {
                for l in loops {
                    ixc_ir::kernel::verify::verify(&l.kernel).unwrap();
                    let stats = ixc_codegen::x64::compile(&l.kernel, target).unwrap().stats;
                    assert_eq!((stats.vector_spills, stats.moves_in_innermost_loops), (0, 0), "{target:?}");
                }
            }
        }
    }

    #[test]
    fn tile_peak_loop_contains_only_tile_products() {
        assert!(loops(Arithmetic::Bf16, Target::AVX512).is_empty());
        let zen4 = Target::from_name("zen4").unwrap();
        let [pairs] = &loops(Arithmetic::Bf16, zen4)[..] else { panic!("one loop") };
        assert_eq!(ixc_ir::kernel::products::Counter::from_kernel(&pairs.kernel).count(&[]).bf16, pairs.multiply_adds);
        let stats = ixc_codegen::x64::compile(&pairs.kernel, zen4).unwrap().stats;
        assert_eq!((stats.vector_spills, stats.moves_in_innermost_loops), (0, 0));
        for (arithmetic, product) in [(Arithmetic::Bf16, "tdpbf16ps"), (Arithmetic::Int8, "tdpbsud")] {
            let loops = loops(arithmetic, Target::AMX);
            let l = loops.last().unwrap();
            ixc_ir::kernel::verify::verify(&l.kernel).unwrap();
            let counts = ixc_ir::kernel::products::Counter::from_kernel(&l.kernel).count(&[]);
            assert_eq!(counts.bf16 + counts.int8, l.multiply_adds);
            let compiled = ixc_codegen::x64::compile(&l.kernel, Target::AMX).unwrap();
            let text = ixc_codegen::x64::listing::text(&compiled, &l.kernel);
            let found = [product, "tileloadd", "tilestored"].map(|name| text.matches(name).count());
            assert_eq!(found, [4, 4, 4], "{text}");
        }
    }

    #[test]
    fn spread_is_half_the_interquartile_range() {
        let seconds = Seconds::from_rounds(vec![5.0, 1.0, 2.0, 3.0, 4.0], 7);
        assert_eq!((seconds.min, seconds.median, seconds.max, seconds.rounds), (1.0, 3.0, 5.0, 5));
        assert!((seconds.spread - 1.0 / 3.0).abs() < 1e-12);
    }
}
