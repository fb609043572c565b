//! Selection of an op's type rule.

use super::rule::Rule;
use super::{
    TypeError, attention, elementwise, experts, loading, norms, one, positions, products, ranks, recurrent, routes,
    rows, streams,
};
use crate::graph::op::OpKind;
use crate::graph::{Attr, Function, Module, Operand, TokenOwner, Type};

/// Returns the types of an op's results.
///
/// # Errors
/// Returns a [`TypeError`] if the operands or attributes do not fit the op.
pub fn result_types(
    module: &Module,
    function: &Function,
    kind: OpKind,
    operands: &[Operand],
    attrs: &[Attr],
) -> Result<Vec<Type>, TypeError> {
    let rule = Rule::new(module, function, kind, operands, attrs)?;
    match kind {
        OpKind::Embed => rows::embed(&rule),
        OpKind::Dequantise => products::dequantise(&rule),
        OpKind::Matmul => products::matmul(&rule),
        OpKind::Add | OpKind::Mul => elementwise::add_or_mul(&rule),
        OpKind::Gated => elementwise::gated(&rule),
        OpKind::AddBias => elementwise::add_bias(&rule),
        OpKind::ScaleHeads => elementwise::scale_heads(&rule),
        OpKind::Unary(_) => elementwise::unary(&rule),
        OpKind::RmsNorm => norms::rms_norm(&rule),
        OpKind::SplitHeads => rows::split_heads(&rule),
        OpKind::MergeHeads => rows::merge_heads(&rule),
        OpKind::Slice => rows::slice(&rule),
        OpKind::Concat => rows::concat(&rule),
        OpKind::Rope => positions::rope(&rule),
        OpKind::Temperature => positions::temperature(&rule),
        OpKind::HeadsTemperature => positions::heads_temperature(&rule),
        OpKind::Centre => norms::centre(&rule),
        OpKind::Recurrent(op) => crate::graph::recurrent::types(&rule, op),
        OpKind::ColumnSquares => recurrent::column_squares(&rule),
        OpKind::HeadsSum => rows::heads_sum(&rule),
        OpKind::Ngram => recurrent::ngram(&rule),
        OpKind::StateBegin => recurrent::state_begin(&rule),
        OpKind::KvAppend | OpKind::RopeAppend => attention::append(&rule, kind),
        OpKind::IndexTopK => attention::index_top_k(&rule),
        OpKind::Attention => attention::attention(&rule),
        OpKind::HeadsMatmul => products::heads_matmul(&rule),
        OpKind::LinearHeads => products::linear_heads(&rule),
        OpKind::Route => routes::route(&rule),
        OpKind::ExpertMatmul => experts::expert_matmul(&rule),
        OpKind::ExpertAddBias => experts::expert_add_bias(&rule),
        OpKind::ExpertScale => experts::expert_scale(&rule),
        OpKind::ExpertCombine => experts::expert_combine(&rule),
        OpKind::Positions => positions::positions(&rule),
        OpKind::Ends => positions::ends(&rule),
        OpKind::AttentionEntries => attention::attention_entries(&rule),
        OpKind::RouteListed => routes::route_listed(&rule),
        OpKind::RouteGiven => routes::route_given(&rule),
        OpKind::RouteIdentities => routes::route_identities(&rule),
        OpKind::ExpertGroups => routes::expert_groups(&rule),
        OpKind::StreamWeights => streams::stream_weights(&rule),
        OpKind::StreamInput => streams::stream_input(&rule),
        OpKind::StreamMix => streams::stream_mix(&rule),
        OpKind::StreamAttend => streams::stream_attend(&rule),
        OpKind::TakeRows => rows::take_rows(&rule),
        OpKind::Quantise => norms::quantise(&rule),
        OpKind::RmsNormQuantise => norms::rms_norm_quantise(&rule),
        OpKind::Linear => products::linear(&rule),
        OpKind::LinearQkv => products::linear_qkv(&rule),
        OpKind::LinearSwiglu => products::linear_swiglu(&rule),
        OpKind::RopeHeads => positions::rope_heads(&rule),
        OpKind::ExpertSwiglu => experts::expert_swiglu(&rule),
        OpKind::ExpertDown => experts::expert_down(&rule),
        OpKind::ExpertSplit => routes::expert_split(&rule),
        OpKind::ExpertSlots => one(Type::Token(TokenOwner::Experts)),
        OpKind::ExpertPrefetch => loading::expert_prefetch(&rule),
        OpKind::ExpertWait => loading::expert_wait(&rule),
        OpKind::ExpertEvict => loading::expert_evict(&rule),
        OpKind::RanksBegin => ranks::ranks_begin(&rule),
        OpKind::AllReduce => ranks::all_reduce(&rule),
        OpKind::AllGather => ranks::all_gather(&rule),
        OpKind::Send => ranks::send(&rule),
        OpKind::Recv => ranks::recv(&rule),
        OpKind::RouteOwned => routes::route_owned(&rule),
    }
}
