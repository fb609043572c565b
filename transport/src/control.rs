//! Messages of the control channel. Each consists of one byte for its kind, followed by a text.

/// A message of the control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// A heartbeat, which shows that the sender is alive.
    Heartbeat,
    /// The sender ends the group for a reason that has already been reported to the user.
    End(String),
    /// The sender ends the group and asks rank 0 to report the reason to the user. Rank 0 answers
    /// with [`Control::End`].
    Failure(String),
    /// The sender leaves the group and sends no more messages.
    Leave,
}

impl Control {
    /// Max bytes of a message. Longer reasons are truncated.
    pub const LIMIT: usize = 1024;

    /// Returns the bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Control::Heartbeat => vec![0],
            Control::Leave => vec![1],
            Control::End(reason) => encode_reason(2, reason),
            Control::Failure(reason) => encode_reason(3, reason),
        }
    }

    /// Returns the message that these bytes encode, or `None` if they are no message.
    pub fn decode(bytes: &[u8]) -> Option<Control> {
        match bytes.split_first()? {
            (0, []) => Some(Control::Heartbeat),
            (1, []) => Some(Control::Leave),
            (2, reason) => Some(Control::End(std::str::from_utf8(reason).ok()?.to_owned())),
            (3, reason) => Some(Control::Failure(std::str::from_utf8(reason).ok()?.to_owned())),
            _ => None,
        }
    }
}

/// Encodes a message with a reason.
fn encode_reason(kind: u8, reason: &str) -> Vec<u8> {
    let end = reason.floor_char_boundary(Control::LIMIT - 1);
    [&[kind], &reason.as_bytes()[..end]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding() {
        let reason = || "the drive is full".to_owned();
        for message in [Control::Heartbeat, Control::Leave, Control::End(reason()), Control::Failure(reason())] {
            assert_eq!(Control::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let bytes = Control::End("é".repeat(Control::LIMIT)).encode();
        assert!(bytes.len() <= Control::LIMIT);
        assert!(matches!(Control::decode(&bytes), Some(Control::End(reason)) if reason.chars().all(|c| c == 'é')));
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&[][..], &[4], &[0, 0], &[2, 0xff], &[3, 0xff]] {
            assert_eq!(Control::decode(bytes), None);
        }
    }
}
