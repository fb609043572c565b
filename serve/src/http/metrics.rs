//! `/metrics`: metrics for Prometheus, for each loaded model.
//!
//! A metric has llama-server's name if llama-server has it, otherwise vLLM's name if vLLM has it,
//! otherwise a new name. All names begin with `ixc:`.
//!
//! ```text
//! # HELP ixc:tokens_predicted_total Tokens that were made.
//! # TYPE ixc:tokens_predicted_total counter
//! ixc:tokens_predicted_total{model_name="demo"} 345
//! ```

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::histogram::Histogram;
use crate::http::app::App;
use crate::model::{ExpertCounts, ModelFacts, Status};
use crate::serving::Host;
use ixc_runtime::engine::RankCounts;
use ixc_runtime::homes::NodeUse;

/// The format that Prometheus reads.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric.
struct Metric {
    name: &'static str,
    help: &'static str,
    of: Of,
}

/// Facts and status of a model.
#[derive(Clone, Copy)]
struct ModelState<'a> {
    facts: &'a ModelFacts,
    status: &'a Status,
}

/// Function that returns a number of a model; `None` if the model does not have it.
type Number = fn(ModelState<'_>) -> Option<f64>;

/// Function that returns a number of a rank.
type RankNumber = fn(&RankCounts) -> f64;

/// Function that returns a number of some memory of a rank; `None` if its nodes are unknown.
type NodeNumber = fn(&NodeUse) -> Option<u64>;

/// Kind and source of a metric.
enum Of {
    /// A number that only grows.
    Counter(Number),
    /// A number that may also fall.
    Gauge(Number),
    /// Counters that share a label name, and the value of the label for each.
    Counters(&'static str, &'static [(&'static str, Number)]),
    /// A number of each rank that only grows, with a label `rank`.
    RankCounter(RankNumber),
    /// A number of each rank that may also fall, with a label `rank`.
    RankGauge(RankNumber),
    /// Bytes of each kind of memory of each rank, with labels `rank` and `contents`.
    NodeGauge(NodeNumber),
    Histogram(fn(&Status) -> &Histogram),
}

impl Of {
    fn kind(&self) -> &'static str {
        match self {
            Of::Counter(_) | Of::Counters(..) | Of::RankCounter(_) => "counter",
            Of::Gauge(_) | Of::RankGauge(_) | Of::NodeGauge(_) => "gauge",
            Of::Histogram(_) => "histogram",
        }
    }
}

const fn metric(name: &'static str, of: Of, help: &'static str) -> Metric {
    Metric { name, help, of }
}

/// Returns a quotient of counts, 0 if the divisor is 0.
fn per(dividend: f64, divisor: f64) -> Option<f64> {
    Some(if divisor > 0.0 { dividend / divisor } else { 0.0 })
}

/// Returns a counter of streamed experts, if the model streams experts.
fn experts(state: ModelState<'_>, of: fn(&ExpertCounts) -> f64) -> Option<f64> {
    state.status.experts.as_ref().map(of)
}

use Of::{Counter, Counters, Gauge, NodeGauge, RankCounter, RankGauge};

const METRICS: &[Metric] = &[
    metric(
        "prompt_tokens_total",
        Counter(|model| Some(model.status.prompt_tokens as f64)),
        "Prompt tokens that the model computed.",
    ),
    metric(
        "prompt_tokens_cached_total",
        Counter(|model| Some(model.status.reused_tokens as f64)),
        "Prompt tokens that were reused from a sequence or from the prompt cache.",
    ),
    metric(
        "prompt_seconds_total",
        Counter(|model| Some(model.status.prompt_seconds)),
        "Time of steps that computed prompt tokens.",
    ),
    metric("tokens_predicted_total", Counter(|model| Some(model.status.generated_tokens as f64)), "Generated tokens."),
    metric(
        "tokens_predicted_seconds_total",
        Counter(|model| Some(model.status.decode_seconds)),
        "Time of steps without prompt tokens.",
    ),
    metric(
        "spec_decode_num_drafts_total",
        Counter(|model| Some(model.status.drafts as f64)),
        "Number of drafts: groups of draft tokens of a request that a step verified.",
    ),
    metric(
        "spec_decode_num_draft_tokens_total",
        Counter(|model| Some(model.status.drafted_tokens as f64)),
        "Draft tokens that steps verified.",
    ),
    metric(
        "spec_decode_num_accepted_tokens_total",
        Counter(|model| Some(model.status.accepted_tokens as f64)),
        "Draft tokens that were accepted.",
    ),
    metric(
        "prompt_tokens_seconds",
        Gauge(|model| per(model.status.prompt_tokens as f64, model.status.prompt_seconds)),
        "Computed prompt tokens per second, on average since the model was loaded.",
    ),
    metric(
        "predicted_tokens_seconds",
        Gauge(|model| {
            per(model.status.generated_tokens as f64, model.status.prompt_seconds + model.status.decode_seconds)
        }),
        "Generated tokens per second, on average since the model was loaded.",
    ),
    metric("n_decode_total", Counter(|model| Some(model.status.steps as f64)), "Steps."),
    metric("n_rows_total", Counter(|model| Some(model.status.rows as f64)), "Rows of all steps."),
    metric(
        "n_busy_slots_per_decode",
        Gauge(|model| per(model.status.busy_slots as f64, model.status.steps as f64)),
        "Mean number of sequences with a request in a step.",
    ),
    metric(
        "n_tokens_max",
        Gauge(|model| Some(model.status.max_slot_tokens as f64)),
        "Max number of tokens that a sequence has held.",
    ),
    metric(
        "iteration_tokens_total",
        Of::Histogram(|s| &s.distributions.rows),
        "Number of rows of a step, which is its batch size.",
    ),
    metric(
        "states_bytes",
        Gauge(|model| Some((model.status.states.own + model.status.states.shared) as f64)),
        "Memory of the states of sequences; shared pages count once.",
    ),
    metric(
        "states_shared_bytes",
        Gauge(|model| Some(model.status.states.shared as f64)),
        "Memory of pages of states that several sequences share.",
    ),
    metric(
        "states_saved_bytes",
        Gauge(|model| Some(model.status.states.unshared.saturating_sub(model.status.states.shared) as f64)),
        "Memory that sharing of pages between sequences saves.",
    ),
    metric(
        "sequence_copies_total",
        Counter(|model| Some(model.status.states.copies as f64)),
        "Sequences that began as a copy of another.",
    ),
    metric(
        "sequence_whole_copies_total",
        Counter(|model| Some(model.status.states.whole_copies as f64)),
        "Sequences that began as a copy of another and share no pages with it.",
    ),
    metric("requests_processing", Gauge(|model| Some(model.status.active as f64)), "Requests in progress."),
    metric("requests_deferred", Gauge(|model| Some(model.status.waiting as f64)), "Requests that wait in the queue."),
    metric(
        "requests_ended_total",
        Counter(|model| Some(model.status.ended as f64)),
        "Requests that ended without an error.",
    ),
    metric("requests_failed_total", Counter(|model| Some(model.status.failed as f64)), "Requests that failed."),
    metric(
        "requests_cancelled_total",
        Counter(|model| Some(model.status.cancelled as f64)),
        "Requests whose client disconnected.",
    ),
    metric(
        "request_success_total",
        Counters(
            "finished_reason",
            &[
                ("stop", |model| Some(model.status.ended.saturating_sub(model.status.truncated) as f64)),
                ("length", |model| Some(model.status.truncated as f64)),
                ("abort", |model| Some(model.status.cancelled as f64)),
                ("error", |model| Some(model.status.failed as f64)),
            ],
        ),
        "Finished requests by the reason of their end.",
    ),
    metric(
        "request_queue_time_seconds",
        Of::Histogram(|s| &s.distributions.queued),
        "Time from the arrival of a request to the start of its computation.",
    ),
    metric(
        "time_to_first_token_seconds",
        Of::Histogram(|s| &s.distributions.first_token),
        "Time from the arrival of a request to its first token.",
    ),
    metric(
        "inter_token_latency_seconds",
        Of::Histogram(|s| &s.distributions.between_tokens),
        "Time between two tokens of a request.",
    ),
    metric(
        "e2e_request_latency_seconds",
        Of::Histogram(|s| &s.distributions.whole),
        "Time from the arrival of a request to its end, for requests that ended without an error.",
    ),
    metric(
        "kv_cache_tokens",
        Gauge(|model| Some(model.status.slots.iter().map(|slot| slot.cached_tokens as f64).sum())),
        "Number of tokens that all sequences hold.",
    ),
    metric(
        "kv_cache_usage_perc",
        Gauge(|ModelState { facts, status: s }| {
            let held = s.slots.iter().map(|slot| slot.cached_tokens as f64).sum::<f64>();
            per(held, (s.slots.len() * facts.context) as f64)
        }),
        "Used part of the positions of all sequences, 0 to 1.",
    ),
    metric(
        "prompt_cache_memory_bytes",
        Gauge(|model| Some(model.status.prompt_cache_memory as f64)),
        "Bytes of the prompt cache in memory.",
    ),
    metric(
        "prompt_cache_folder_bytes",
        Gauge(|model| Some(model.status.prompt_cache_folder as f64)),
        "Bytes of the prompt cache in its folder.",
    ),
    metric(
        "expert_hits_total",
        Counter(|model| experts(model, |e| e.hits as f64)),
        "Streamed experts that were in memory when they were needed.",
    ),
    metric(
        "expert_foreseen_total",
        Counter(|model| experts(model, |e| e.foreseen as f64)),
        "Streamed experts that were in memory when they were needed because they had been read ahead.",
    ),
    metric(
        "expert_late_total",
        Counter(|model| experts(model, |e| e.on_the_way as f64)),
        "Streamed experts that were being read when they were needed.",
    ),
    metric(
        "expert_misses_total",
        Counter(|model| experts(model, |e| e.misses as f64)),
        "Streamed experts that were not in memory when they were needed.",
    ),
    metric(
        "expert_stall_seconds_total",
        Counter(|model| experts(model, |e| e.stall_seconds)),
        "Time for which threads waited for streamed experts, summed over the threads.",
    ),
    metric("drive_reads_total", Counter(|model| experts(model, |e| e.reads as f64)), "Reads of experts."),
    metric(
        "drive_read_bytes_total",
        Counter(|model| experts(model, |e| e.read_bytes as f64)),
        "Bytes of experts that were read.",
    ),
    metric(
        "drive_busy_seconds_total",
        Counter(|model| experts(model, |e| e.busy_seconds)),
        "Time with at least one outstanding read of an expert.",
    ),
    metric(
        "rank_exchanges_total",
        RankCounter(|rank| rank.exchanged.exchanges as f64),
        "Number of exchanges with other ranks in steps.",
    ),
    metric(
        "rank_messages_total",
        RankCounter(|rank| rank.exchanged.messages as f64),
        "Messages that a rank sent in exchanges.",
    ),
    metric(
        "rank_sent_bytes_total",
        RankCounter(|rank| rank.exchanged.bytes as f64),
        "Bytes that a rank sent in exchanges.",
    ),
    metric(
        "rank_wait_seconds_total",
        RankCounter(|rank| rank.exchanged.waited.as_secs_f64()),
        "Time of a rank in exchanges: waiting for the other ranks, and for all bytes to arrive.",
    ),
    metric("rank_memory_bytes", RankGauge(|rank| rank.memory_bytes as f64), "Resident memory of a rank's process."),
    metric(
        "numa_local_bytes",
        NodeGauge(NodeUse::local_bytes),
        "Resident memory of a rank, or of a copy of the weights, on its NUMA nodes.",
    ),
    metric(
        "numa_remote_bytes",
        NodeGauge(NodeUse::remote_bytes),
        "Resident memory of a rank, or of a copy of the weights, on other NUMA nodes.",
    ),
];

/// Answers with the text for Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let loaded: Vec<Arc<Host>> = app.models.list().into_iter().filter_map(|listed| listed.model).collect();
    let models: Vec<_> =
        loaded.iter().map(|model| LoadedModel { facts: model.facts(), status: model.status() }).collect();
    ([(header::CONTENT_TYPE, TEXT)], text(&models)).into_response()
}

/// A loaded model.
struct LoadedModel<'a> {
    facts: &'a ModelFacts,
    status: Status,
}

/// Returns all metrics of these models as text.
fn text(models: &[LoadedModel<'_>]) -> String {
    let mut text = String::new();
    for Metric { name, help, of } in METRICS {
        let mut series = String::new();
        for LoadedModel { facts, status } in models {
            write_series(&mut series, name, of, ModelState { facts, status });
        }
        if !series.is_empty() {
            let kind = of.kind();
            // Writing to a text never fails.
            let _ = write!(text, "# HELP ixc:{name} {help}\n# TYPE ixc:{name} {kind}\n{series}");
        }
    }
    text
}

fn write_series(text: &mut String, name: &str, of: &Of, state: ModelState<'_>) {
    let model = escape_label(&state.facts.name);
    match of {
        Counter(number) | Gauge(number) => {
            if let Some(value) = number(state) {
                let _ = writeln!(text, "ixc:{name}{{model_name=\"{model}\"}} {value}");
            }
        }
        Counters(label, numbers) => {
            for (word, number) in *numbers {
                if let Some(value) = number(state) {
                    let _ = writeln!(text, "ixc:{name}{{model_name=\"{model}\",{label}=\"{word}\"}} {value}");
                }
            }
        }
        RankCounter(number) | RankGauge(number) => {
            for (rank, counts) in state.status.ranks.iter().enumerate() {
                let value = number(counts);
                let _ = writeln!(text, "ixc:{name}{{model_name=\"{model}\",rank=\"{rank}\"}} {value}");
            }
        }
        NodeGauge(number) => {
            for of_rank in &state.status.nodes {
                let (rank, contents) = (of_rank.rank, of_rank.what);
                if let Some(value) = number(of_rank) {
                    let labels = format!("model_name=\"{model}\",rank=\"{rank}\",contents=\"{contents}\"");
                    let _ = writeln!(text, "ixc:{name}{{{labels}}} {value}");
                }
            }
        }
        Of::Histogram(histogram) => {
            let histogram = histogram(state.status);
            for (bound, count) in histogram.buckets() {
                let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                let _ = writeln!(text, "ixc:{name}_bucket{{model_name=\"{model}\",le=\"{bound}\"}} {count}");
            }
            let (sum, count) = (histogram.sum(), histogram.count());
            let _ = writeln!(text, "ixc:{name}_sum{{model_name=\"{model}\"}} {sum}");
            let _ = writeln!(text, "ixc:{name}_count{{model_name=\"{model}\"}} {count}");
        }
    }
}

/// Returns a label's value in the form of Prometheus.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
