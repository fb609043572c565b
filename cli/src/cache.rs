//! `ixc cache`: lists and removes the compiled plans that runs have cached.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use ixc_generate::plan_cache::{CacheError, CachedPlan, PlanCache};
use serde_json::{Value as Json, json};

use super::Usage;
use super::model_name::ModelName;
use super::output::{self, Bytes, Printable, count_text};
use super::plan_cache::CacheFolder;

/// Min digits of an abbreviated id.
const ID_DIGITS: usize = 4;

/// Lists and removes cached plans.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc cache ls
  ixc cache rm model.gguf
  ixc cache rm --everything
  ixc cache gc --cache-limit 100MiB

`ixc run`, `serve`, `embed`, `eval` and `logits` compile a model into a plan and cache the plan. The \
next start with the same options compiles nothing. docs/cache.md describes the cache.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Ls(ListArgs),
    Rm(RemoveArgs),
    Gc(CollectArgs),
}

/// Lists cached plans, the last used first.
#[derive(Debug, clap::Args)]
#[command(
    visible_alias = "list",
    after_help = "EXAMPLES:
  ixc cache ls
  ixc cache ls --json | jq '.plans[].model'"
)]
struct ListArgs {
    #[command(flatten)]
    folder: CacheFolder,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Removes the cached plans of models, or single ones.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc cache rm model.gguf         all plans of a model
  ixc cache rm 0f3a6c1d           one plan, by the first digits of its id
  ixc cache rm --everything

A plan that a program uses may be removed: the program keeps it open.")]
struct RemoveArgs {
    /// Models, or ids of plans as `ixc cache ls` shows them.
    #[arg(value_name = "MODEL|ID", required_unless_present = "everything", conflicts_with = "everything")]
    names: Vec<String>,
    /// Remove all cached plans.
    #[arg(long)]
    everything: bool,
    #[command(flatten)]
    folder: CacheFolder,
}

/// Removes damaged plans and remains of killed programs, then old plans until the limit is kept.
///
/// Each run that caches a plan keeps the limit, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc cache gc
  ixc cache gc --cache-limit 100MiB")]
struct CollectArgs {
    #[command(flatten)]
    folder: CacheFolder,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        match self.action {
            Action::Ls(args) => args.run(out),
            Action::Rm(args) => args.run(out),
            Action::Gc(args) => args.run(out),
        }
    }
}

/// Converts an error of the cache.
fn cache_error(error: CacheError) -> ixc_error::Error {
    ixc_error::Error::io(&error.path, error.action)(error.source)
}

/// Returns the total size of cached plans, in bytes.
fn sum(entries: &[CachedPlan]) -> u64 {
    entries.iter().map(|entry| entry.bytes).sum()
}

/// Describes the size of the cache: `2 plans, 1.4 MiB of at most 1 GiB`.
pub fn size_text(cache: &PlanCache, entries: &[CachedPlan]) -> String {
    let taken = sum(entries);
    let plans = count_text(entries.len() as u64, "plan");
    format!("{plans}, {} of at most {}", Bytes(taken), Bytes(cache.limit(taken)))
}

impl ListArgs {
    fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let cache = self.folder.cache()?;
        let entries = cache.list().map_err(cache_error)?;
        if self.json {
            return Ok(output::json(out, "ixc.cache.v1", &facts(&cache, &entries))?);
        }
        if !entries.is_empty() {
            writeln!(out, "{:<16} {:>9} {:<20} {:<12} {:<8} model", "id", "size", "last use", "target", "experts")?;
        }
        entries.iter().try_for_each(|entry| write_entry(out, entry))?;
        let folder = cache.folder().display().to_string();
        Ok(writeln!(out, "{} in {}", size_text(&cache, &entries), Printable(&folder))?)
    }
}

/// Returns the cache's folder, its sizes and its plans as JSON.
pub fn facts(cache: &PlanCache, entries: &[CachedPlan]) -> Json {
    json!({
        "folder": cache.folder(),
        "bytes": sum(entries),
        "limit": cache.limit(sum(entries)),
        "plans": entries.iter().map(entry_facts).collect::<Vec<_>>(),
    })
}

/// Returns facts about a cached plan as JSON.
fn entry_facts(entry: &CachedPlan) -> Json {
    let record = entry.record.as_ref();
    json!({
        "id": entry.id,
        "model": record.map(|record| &record.model),
        "architecture": record.map(|record| &record.architecture),
        "target": record.map(|record| &record.target),
        "streamed": record.map(|record| record.streamed),
        "bytes": entry.bytes,
        "last_use": humantime::format_rfc3339_seconds(entry.used).to_string(),
        "damaged": record.is_none(),
    })
}

fn write_entry(out: &mut dyn Write, entry: &CachedPlan) -> io::Result<()> {
    let (id, size) = (&entry.id, Bytes(entry.bytes).to_string());
    let used = humantime::format_rfc3339_seconds(entry.used);
    let Some(record) = &entry.record else {
        return writeln!(out, "{id} {size:>9} {used:<20} damaged; `ixc cache gc` removes it");
    };
    let experts = if record.streamed { "streamed" } else { "" };
    let model = record.model.display().to_string();
    writeln!(out, "{id} {size:>9} {used:<20} {:<12} {experts:<8} {}", Printable(&record.target), Printable(&model))
}

impl RemoveArgs {
    fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let cache = self.folder.cache()?;
        let mut entries = cache.list().map_err(cache_error)?;
        if !self.everything {
            let names: Vec<NamedPlans> = self.names.iter().map(|name| NamedPlans::parse(name)).collect();
            if let Some(name) = names.iter().find(|name| !entries.iter().any(|entry| name.has(entry))) {
                let name = name.name;
                return Err(Usage(format!(
                    "no cached plan has the id or the model file {name}; `ixc cache ls` lists all plans"
                ))
                .into());
            }
            entries.retain(|entry| names.iter().any(|name| name.has(entry)));
        }
        let bytes = cache.remove(&entries).map_err(cache_error)?;
        Ok(writeln!(out, "removed {}, {}", count_text(entries.len() as u64, "plan"), Bytes(bytes))?)
    }
}

/// Name on the command line that selects cached plans: a model, or the id of a plan.
struct NamedPlans<'n> {
    name: &'n str,
    /// Path of the model, if the name is a model: in absolute form and in canonical form.
    paths: Vec<PathBuf>,
}

impl NamedPlans<'_> {
    fn parse(name: &str) -> NamedPlans<'_> {
        let named = ModelName::parse(name.as_ref()).ok().and_then(|model| model.path().map(Path::to_owned));
        let path = named.unwrap_or_else(|| name.into());
        let paths = [std::path::absolute(&path), fs::canonicalize(&path)].into_iter().flatten().collect();
        NamedPlans { name, paths }
    }

    fn has(&self, entry: &CachedPlan) -> bool {
        let is_id = self.name.len() >= ID_DIGITS && entry.id.starts_with(self.name);
        let is_model = |path: &PathBuf| self.paths.contains(path);
        is_id || entry.record.as_ref().is_some_and(|record| is_model(&record.model))
    }
}

impl CollectArgs {
    fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let cache = self.folder.cache()?;
        let (count, bytes) = cache.collect().map_err(cache_error)?;
        let left = size_text(&cache, &cache.list().map_err(cache_error)?);
        Ok(writeln!(out, "removed {}, {}; left {left}", count_text(count as u64, "plan"), Bytes(bytes))?)
    }
}
