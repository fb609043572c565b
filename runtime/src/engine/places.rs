//! Options of engines on NUMA nodes. Each rank of this process gets a home (nodes and processors)
//! on the machine.

use std::path::Path;
use std::sync::Arc;

use crate::error::load::LoadError;
use crate::homes::Homes;
use crate::numa::Numa;
use crate::numa::error::NumaError;
use crate::numa::placement::{RankPlace, place_process, place_ranks, place_threads, processors_near};
use crate::numa::topology::Topology;
use crate::options::EngineOptions;
use crate::pool::processors;
use crate::streaming::affinity;

/// Returns the machine's NUMA topology; `None` if the run does not use NUMA nodes. With
/// [`Numa::Auto`], a run uses them if there are several.
fn topology(options: &EngineOptions) -> Result<Option<Arc<Topology>>, NumaError> {
    if options.numa == Numa::Off {
        return Ok(None);
    }
    let known = options.topology.clone().or_else(|| Topology::detect().map(Arc::new));
    let topology = match known {
        None if options.numa == Numa::Auto => return Ok(None),
        known => known.ok_or(NumaError::NoProcessors)?,
    };
    // The call caches the number of processors before threads are bound, because binding changes
    // the number.
    processors();
    let several = topology.usable_nodes().count() > 1;
    Ok(Some(topology).filter(|_| several || options.numa != Numa::Auto))
}

/// Returns the number of ranks for which a model file is compiled. It is the number of NUMA nodes,
/// or 1 if the options do not divide the model.
///
/// # Errors
/// Fails if the system lists no processors.
pub fn ranks_for(options: &EngineOptions) -> Result<u32, NumaError> {
    match options.numa {
        Numa::Off | Numa::Mirror => Ok(1),
        Numa::Cut | Numa::Auto => {
            let nodes = topology(options)?.map_or(1, |topology| topology.usable_nodes().count());
            Ok(u32::try_from(nodes).unwrap_or(1).max(1))
        }
    }
}

/// Returns the options of an engine for a whole model: with homes if the options mirror weights.
///
/// # Errors
/// Fails if the options divide the model ([`Numa::Cut`]) and the machine has several nodes, because
/// the plan has only one rank. Also fails if no node has processors.
pub(crate) fn of_whole(options: &EngineOptions) -> Result<EngineOptions, LoadError> {
    let mut options = options.clone();
    let Some(topology) = topology(&options)? else { return Ok(options) };
    let nodes = topology.usable_nodes().count();
    match options.numa {
        Numa::Off | Numa::Auto => {}
        Numa::Cut if nodes > 1 => return Err(NumaError::OneRank { nodes }.into()),
        Numa::Cut => {}
        Numa::Mirror => {
            let places = place_threads(&topology, options.threads)?;
            options.homes = Homes::at(places);
            options.threads = options.homes.threads().or(options.threads);
        }
    }
    Ok(options)
}

/// Returns the options of each rank of this process. `options` are those that the user set for all
/// ranks. `file` is a model file; threads that read experts are placed near its drive.
///
/// # Errors
/// Fails if the options mirror weights ([`Numa::Mirror`]), or if no node has processors for this
/// process.
pub(crate) fn of_ranks(
    options: &EngineOptions,
    ranks: usize,
    file: Option<&Path>,
) -> Result<Vec<EngineOptions>, LoadError> {
    let Some(topology) = topology(options)? else { return Ok(vec![options.clone(); ranks]) };
    if options.numa == Numa::Mirror {
        return Err(NumaError::MirrorRanks { ranks: u32::try_from(ranks).unwrap_or(u32::MAX) }.into());
    }
    let mut shared = options.clone();
    // The node of the drive is determined before threads are bound to their ranks' processors.
    // Otherwise its processors would be limited to those of one rank.
    let node = file.and_then(|file| affinity::place(file)?.node);
    let near = node.and_then(|node| processors_near(&topology, node));
    shared.stream.drive.cpus = shared.stream.drive.cpus.or(near);
    let own = |place: RankPlace| {
        let homes = Homes::at(vec![place]);
        EngineOptions { threads: homes.threads().or(shared.threads), homes, ..shared.clone() }
    };
    Ok(place_ranks(&topology, ranks, options.threads)?.into_iter().map(own).collect())
}

/// Returns the options of the only rank in this process. Its home is all processors that the
/// process may use.
///
/// # Errors
/// See [`of_ranks`].
pub(crate) fn of_process(options: &EngineOptions, ranks: u32) -> Result<EngineOptions, LoadError> {
    let Some(topology) = topology(options)? else { return Ok(options.clone()) };
    if options.numa == Numa::Mirror {
        return Err(NumaError::MirrorRanks { ranks }.into());
    }
    let homes = Homes::at(vec![place_process(&topology, options.threads)?]);
    Ok(EngineOptions { threads: homes.threads().or(options.threads), homes, ..options.clone() })
}
