//! Ranks: processes that compute a model together. Each rank has its own graph. Collective ops
//! exchange data between the ranks.
//!
//! ```text
//! %g = ranks.begin {rank = 0, ranks = 2} : token[0, 2]          // in the graph of rank 0
//! %y, %g1 = all_reduce %g, %x : f32[T, 256], token[0, 2]
//! ```
//!
//! A collective takes the group's token and returns the next one, like an op on a state. Passes
//! therefore neither move nor drop collectives, and the collectives of a graph have a fixed order.
//!
//! [`verify_ranks`] checks that the collectives of all ranks match in order. No rank then waits for
//! an exchange that another rank does not take part in. `send` is treated as if it waited for its
//! `recv`. A group that passes the check therefore also ends if messages are not buffered.

use std::fmt::{self, Display, Formatter};

use ixc_failure::Class;

use super::op::OpKind;
use super::verify::{VerifyError, verify};
use super::view::{self, OpView};
use super::{Function, Group, Module, Op, Operand, TokenOwner, Type};

/// Kind of an exchange between ranks, as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// Sum of the operands of all ranks.
    AllReduce,
    /// Concatenation of the operands of all ranks.
    AllGather,
    /// Message to the rank of this number.
    Send(u32),
    /// Message from the rank of this number.
    Recv(u32),
}

/// A collective op of one rank's graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Kind of the exchange.
    pub kind: CollectiveKind,
    /// Type of the operand, or of the result for `recv`.
    pub ty: Type,
}

impl Collective {
    /// Returns the collective of an op, or `None` for other ops. The verifier must accept the op.
    pub fn from_op(function: &Function, op: &Op) -> Option<Collective> {
        let rank = |rank: i64| rank as u32;
        let collective = |kind, value| Some(Collective { kind, ty: function.ty(value).clone() });
        match op.kind {
            OpKind::AllReduce => collective(CollectiveKind::AllReduce, view::AllReduce::from_op(op)?.x),
            OpKind::AllGather => collective(CollectiveKind::AllGather, view::AllGather::from_op(op)?.x),
            OpKind::Send => {
                let view::Send { x, to, .. } = view::Send::from_op(op)?;
                collective(CollectiveKind::Send(rank(to)), x)
            }
            OpKind::Recv => collective(CollectiveKind::Recv(rank(view::Recv::from_op(op)?.from)), *op.results.first()?),
            _ => None,
        }
    }

    /// Returns the collective that rank `peer` must have if rank `own` has this one. For sums and
    /// concatenations, this is the same collective.
    fn matching(&self, own: u32) -> Collective {
        let kind = match self.kind {
            CollectiveKind::Send(_) => CollectiveKind::Recv(own),
            CollectiveKind::Recv(_) => CollectiveKind::Send(own),
            kind @ (CollectiveKind::AllReduce | CollectiveKind::AllGather) => kind,
        };
        Collective { kind, ty: self.ty.clone() }
    }
}

impl Display for Collective {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Collective { kind, ty } = self;
        match kind {
            CollectiveKind::AllReduce => write!(f, "all_reduce of {ty}"),
            CollectiveKind::AllGather => write!(f, "all_gather of {ty}"),
            CollectiveKind::Send(to) => write!(f, "send of {ty} to rank {to}"),
            CollectiveKind::Recv(from) => write!(f, "recv of {ty} from rank {from}"),
        }
    }
}

/// Reason why the graphs of a group do not match.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RanksError {
    /// The list of graphs is empty.
    #[error("there are no graphs of ranks; expected one for each rank")]
    Empty,
    /// A graph that the verifier rejects.
    #[error("rank {rank}: {error}")]
    Module {
        /// Number of the rank.
        rank: usize,
        /// Error of the verifier.
        #[source]
        error: Box<VerifyError>,
    },
    /// A graph that lacks a function of another rank's graph.
    #[error("rank {rank}: the functions are {found}; expected {expected}, as rank 0 has")]
    Functions {
        /// Number of the rank.
        rank: usize,
        /// Names of the functions in this rank's graph.
        found: String,
        /// Names of the functions in the graph of rank 0.
        expected: String,
    },
    /// A function whose parameters differ from those on rank 0.
    #[error("rank {rank}: @{function} takes ({found}); expected ({expected}), as on rank 0")]
    Parameters {
        /// Number of the rank.
        rank: usize,
        /// Name of the function.
        function: String,
        /// Types of the function's parameters on this rank.
        found: String,
        /// Types of the function's parameters on rank 0.
        expected: String,
    },
    /// A graph that was made for another rank, or for another number of ranks.
    #[error("rank {rank}: @{function} is of rank {} of {}; expected rank {rank} of {ranks}", found.rank, found.ranks)]
    Group {
        /// Number of the rank.
        rank: usize,
        /// Name of the function.
        function: String,
        /// Rank and number of ranks in the graph.
        found: Group,
        /// Number of graphs.
        ranks: usize,
    },
    /// A collective without its counterpart on another rank.
    #[error(transparent)]
    Collective(#[from] Box<UnmatchedCollective>),
}

/// A collective without its counterpart on another rank.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "rank {rank}: collective {at} of @{function} is {found}; expected {expected}, because rank {peer} has {theirs}"
)]
pub struct UnmatchedCollective {
    /// Number of the rank.
    pub rank: usize,
    /// Name of the function.
    pub function: String,
    /// Index of the collective in the function, from 0.
    pub at: usize,
    /// Collective of this rank at that index, or the end of its function.
    pub found: String,
    /// Collective that the peer needs.
    pub expected: String,
    /// Rank that waits for the expected collective.
    pub peer: usize,
    /// Collective that the peer waits for.
    pub theirs: String,
}

impl RanksError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            RanksError::Empty
            | RanksError::Module { .. }
            | RanksError::Functions { .. }
            | RanksError::Parameters { .. }
            | RanksError::Group { .. }
            | RanksError::Collective(_) => Class::Data,
        }
    }
}

/// Next exchange of data in a group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// All ranks take part.
    All(CollectiveKind),
    /// Two ranks exchange a message.
    Message {
        /// Rank that sends.
        from: usize,
        /// Rank that receives.
        to: usize,
    },
    /// All ranks have reached the end of the function.
    End,
}

/// Two ranks whose next collectives do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Conflict {
    /// Rank that waits for an exchange.
    waiting: usize,
    /// Rank whose next collective does not match.
    other: usize,
}

/// Returns the next exchange, given the next collective of each rank. `None` is the end of a
/// function.
fn next_exchange(heads: &[Option<Collective>]) -> Result<Exchange, Conflict> {
    let Some(waiting) = heads.iter().position(Option::is_some) else { return Ok(Exchange::End) };
    let message = heads.iter().enumerate().find_map(|(from, head)| {
        let head = head.as_ref()?;
        let CollectiveKind::Send(to) = head.kind else { return None };
        let to = to as usize;
        (heads.get(to)?.as_ref()? == &head.matching(from as u32)).then_some(Exchange::Message { from, to })
    });
    if let Some(message) = message {
        return Ok(message);
    }
    // If no message can pass between two ranks, a rank that waits for a message would wait for
    // ever.
    let alone = |(rank, head): (usize, &Option<Collective>)| match head.as_ref()?.kind {
        CollectiveKind::Send(peer) | CollectiveKind::Recv(peer) => {
            Some(Conflict { waiting: rank, other: peer as usize })
        }
        CollectiveKind::AllReduce | CollectiveKind::AllGather => None,
    };
    let other = heads.iter().position(|head| head != &heads[waiting]);
    match (other, heads[waiting].as_ref().map(|head| head.kind)) {
        (None, Some(kind @ (CollectiveKind::AllReduce | CollectiveKind::AllGather))) => Ok(Exchange::All(kind)),
        (other, _) => {
            let both = heads.iter().enumerate().find_map(alone);
            Err(both.unwrap_or(Conflict { waiting, other: other.unwrap_or(waiting) }))
        }
    }
}

/// Collectives of one function on all ranks, with the index of the next collective of each rank.
pub(super) struct Schedule {
    function: String,
    collectives: Vec<Vec<Collective>>,
    /// Index of each rank's next collective.
    next: Vec<usize>,
}

impl Schedule {
    /// Returns the schedule of the function `function`, which each module must have.
    pub(super) fn new(modules: &[&Module], function: &str) -> Schedule {
        let of_rank = |module: &&Module| -> Vec<Collective> {
            let own = module.functions.iter().filter(|own| own.name == function);
            own.flat_map(|own| own.ops.iter().filter_map(|op| Collective::from_op(own, op))).collect()
        };
        let collectives = modules.iter().map(of_rank).collect();
        Schedule { function: function.to_string(), collectives, next: vec![0; modules.len()] }
    }

    /// Advances by one exchange, and returns it.
    pub(super) fn advance(&mut self) -> Result<Exchange, RanksError> {
        let heads: Vec<Option<Collective>> =
            self.collectives.iter().zip(&self.next).map(|(own, &next)| own.get(next).cloned()).collect();
        let exchange = next_exchange(&heads).map_err(|conflict| self.error(&heads, conflict))?;
        match exchange {
            Exchange::All(_) => self.next.iter_mut().for_each(|next| *next += 1),
            Exchange::Message { from, to } => [from, to].into_iter().for_each(|rank| self.next[rank] += 1),
            Exchange::End => {}
        }
        Ok(exchange)
    }

    fn error(&self, heads: &[Option<Collective>], Conflict { waiting, other }: Conflict) -> RanksError {
        let text = |head: Option<&Collective>| head.map_or("the end".to_string(), Collective::to_string);
        let theirs = heads[waiting].as_ref();
        RanksError::Collective(Box::new(UnmatchedCollective {
            rank: other,
            function: self.function.clone(),
            at: self.next.get(other).copied().unwrap_or(0),
            found: text(heads.get(other).and_then(Option::as_ref)),
            expected: text(theirs.map(|theirs| theirs.matching(waiting as u32)).as_ref()),
            peer: waiting,
            theirs: text(theirs),
        }))
    }
}

/// Verifies the graph of each rank, and then that the collectives of all ranks match.
///
/// # Errors
/// Returns the first problem: functions in order, and in each function exchanges in order.
pub fn verify_ranks(modules: &[&Module]) -> Result<(), RanksError> {
    let Some(first) = modules.first() else { return Err(RanksError::Empty) };
    for (rank, module) in modules.iter().enumerate() {
        verify(module).map_err(|error| RanksError::Module { rank, error: Box::new(error) })?;
        let names = |module: &Module| -> Vec<String> {
            module.functions.iter().map(|function| format!("@{}", function.name)).collect()
        };
        if names(module) != names(first) {
            let [found, expected] = [module, first].map(|module| names(module).join(", "));
            return Err(RanksError::Functions { rank, found, expected });
        }
        for (function, of_first) in module.functions.iter().zip(&first.functions) {
            check_function(rank, modules.len(), function, of_first)?;
        }
    }
    for function in &first.functions {
        let mut schedule = Schedule::new(modules, &function.name);
        while schedule.advance()? != Exchange::End {}
    }
    Ok(())
}

/// Checks the parameters of a function, and that its `ranks.begin` has this rank and this number of
/// ranks.
fn check_function(rank: usize, ranks: usize, function: &Function, first: &Function) -> Result<(), RanksError> {
    // Tokens of a group are omitted, since they differ from rank to rank.
    let types = |function: &Function| -> Vec<String> {
        let types = function.params.iter().map(|&param| function.ty(param));
        types.filter(|ty| !matches!(ty, Type::Token(_))).map(Type::to_string).collect()
    };
    if types(function) != types(first) {
        let [found, expected] = [function, first].map(|function| types(function).join(", "));
        return Err(RanksError::Parameters { rank, function: function.name.clone(), found, expected });
    }
    let operands = function.ops.iter().flat_map(|op| &op.operands).filter_map(|operand| match operand {
        Operand::Value(value) => Some(*value),
        Operand::Weight(_) | Operand::State(_) | Operand::Absent => None,
    });
    let group = operands.chain(function.params.iter().copied()).find_map(|value| match function.ty(value) {
        Type::Token(TokenOwner::Ranks(group)) => Some(*group),
        Type::Token(TokenOwner::State(_) | TokenOwner::Experts) | Type::Tensor { .. } => None,
    });
    match group {
        Some(found) if (found.rank as usize, found.ranks as usize) != (rank, ranks) => {
            Err(RanksError::Group { rank, function: function.name.clone(), found, ranks })
        }
        Some(_) | None => Ok(()),
    }
}
