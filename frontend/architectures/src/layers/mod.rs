//! Layers that several architectures share, each under its published name.
//!
//! | file | layer |
//! | --- | --- |
//! | `mla` | multi-head latent attention |
//! | `key_absorption` | derives a tensor of latent attention that older files lack |
//! | `gated_delta_net` | linear attention by the gated delta rule |
//! | `kda` | Kimi Delta Attention: a decay for each element of a key |
//! | `lightning_attention` | linear attention with constant decays |
//! | `mamba` | the selective state space of Mamba-1 |
//! | `mamba2` | the selective state space of Mamba-2 |
//! | `rwkv` | keys of RWKV's layers |
//! | `rwkv6` | the time mix of RWKV-6, "Finch" |
//! | `rwkv7` | the time mix of RWKV-7, "Goose" |
//! | `temperature` | a factor on queries that grows with the position |
//! | `token_shift` | the token shift of RWKV, and its low-rank projections |
//! | `hyper_connections` | several residual streams |
//! | `per_layer_embeddings` | an additional input of each layer, which depends on the token |

pub mod gated_delta_net;
pub mod hyper_connections;
pub mod kda;
pub mod key_absorption;
pub mod lightning_attention;
pub mod mamba;
pub mod mamba2;
pub mod mla;
pub mod per_layer_embeddings;
pub mod rwkv;
pub mod rwkv6;
pub mod rwkv7;
pub mod temperature;
pub mod token_shift;
