//! Kernels of attention in order of preference. The first kernel that accepts a request is used.
//!
//! ```
//! use ixc_kernels::attention::{AttentionRequest, CANDIDATES, Heads, Scores};
//!
//! let heads = Heads { group: 4, d: 64, dv: 64 };
//! let plain = AttentionRequest::plain(heads, Scores::with_scale(0.125), 8);
//! let request = AttentionRequest { rows: 8, ..plain };
//! let mut accepted = CANDIDATES.iter().filter_map(|candidate| candidate.accepts(&request).ok());
//! assert_eq!(accepted.next().unwrap().spec.name(), "attention_g4d64v64h8m4_s3e000000");
//! ```

use super::entries::AttentionEntries;
use super::part::AttentionPart;
use super::request::{AttentionRequest, KernelOffer, Reason};
use super::tiles::{AttentionTiles, FEW_ROWS, SHORT_ROWS};
use super::whole::Attention;
use super::window::AttentionWindow;
use crate::generator::text::Text;

/// A kernel that may accept a request.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// First word of the text of the kernel's spec.
    pub kernel: &'static str,
    accepts: fn(&AttentionRequest) -> Result<KernelOffer, Reason>,
}

impl Candidate {
    /// Returns the spec of the kernel for a request, and the sizes of its items.
    ///
    /// # Errors
    /// Returns the first reason why the kernel does not accept the request.
    pub fn accepts(&self, request: &AttentionRequest) -> Result<KernelOffer, Reason> {
        (self.accepts)(request)
    }
}

/// All kernels of attention, in order of preference. Specialised kernels come before [`Attention`],
/// which is the most general.
pub static CANDIDATES: &[Candidate] = &[
    Candidate { kernel: AttentionEntries::WORD, accepts: AttentionEntries::accepts },
    Candidate { kernel: AttentionTiles::WORD, accepts: AttentionTiles::accepts },
    Candidate { kernel: AttentionWindow::WORD, accepts: AttentionWindow::accepts },
    Candidate { kernel: AttentionPart::WORD, accepts: AttentionPart::accepts },
    Candidate { kernel: Attention::WORD, accepts: Attention::accepts },
];

/// Maximum row counts of ranges, in ascending order. All row counts of a range get the same answer
/// from every kernel.
pub const ROW_COUNTS: [u32; 4] = [1, FEW_ROWS, SHORT_ROWS, u32::MAX];
