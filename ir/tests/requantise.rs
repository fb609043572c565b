//! Tests of rows that are requantised to block formats.

use ixc_ir::format::Format;
use ixc_ir::format::requantise::requantise;
use ixc_ir::random::Random;
use ixc_testing::random_graphs::weight_bytes;

#[test]
fn block_formats_requantise_like_their_decoded_rows() {
    let mut random = Random::new(3);
    for from in [Format::Q4K, Format::Q6K, Format::Q8_0, Format::Bf16] {
        let bytes = weight_bytes(&mut random, from, 4 * 512);
        let x = from.dequantise_rows(&bytes, 512);
        for to in Format::requantisation_formats() {
            assert_eq!(
                requantise(from, to, &bytes, 512),
                requantise(Format::F32, to, &x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), 512),
                "{from} {to}"
            );
        }
    }
}
