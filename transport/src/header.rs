//! The header of each message between processes. With it, a receiver detects messages that were
//! lost, repeated or meant for another exchange.

/// Header of a frame. Long messages are divided into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Number of frames that the sender has sent to this receiver before this one.
    pub sequence: u64,
    /// Bytes of the whole message. This frame contains a part of them.
    pub message_bytes: u64,
}

impl Header {
    /// Length of an encoded header in bytes.
    pub const BYTES: usize = 16;

    /// Encodes the header in little-endian order.
    pub fn encode(self) -> [u8; Header::BYTES] {
        let mut bytes = [0; Header::BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&self.message_bytes.to_le_bytes());
        bytes
    }

    /// Splits a frame into its header and its contents. Returns `None` if the frame is too short
    /// for a header.
    pub fn split(frame: &[u8]) -> Option<(Header, &[u8])> {
        let (header, contents) = frame.split_first_chunk::<{ Header::BYTES }>()?;
        let (sequence, message_bytes) = header.split_first_chunk::<8>()?;
        let message_bytes = message_bytes.first_chunk::<8>()?;
        let header =
            Header { sequence: u64::from_le_bytes(*sequence), message_bytes: u64::from_le_bytes(*message_bytes) };
        Some((header, contents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_header_is_split_from_its_contents() {
        let header = Header { sequence: 3, message_bytes: 1 << 40 };
        let mut frame = header.encode().to_vec();
        frame.extend([7, 8]);
        assert_eq!(Header::split(&frame), Some((header, &[7, 8][..])));
        assert_eq!(Header::split(&frame[..15]), None);
    }
}
