//! Number of rows of an item of attention with tile products.

use super::AttentionTiles;

/// Maximum number of rows of a step for which tile products are slower. As in products with
/// weights, there would be too few items for all threads.
pub const FEW_ROWS: u32 = 15;
/// Maximum number of rows of a step whose items have half the usual number of queries. Each of 16
/// threads then gets items.
pub const SHORT_ROWS: u32 = 128;
/// Maximum number of queries of an item.
const QUERIES: u32 = 256;
/// Number of queries of an item for which the work on a position takes as long as the conversion of
/// the position to bf16. The work is 1.5 cycles for each query, and the conversion about 40 cycles.
const CONVERSION: f64 = 27.0;

/// Returns the maximum number of rows of an item in a long step. Without a window, it follows from
/// the limit of queries. An item with a window covers the window plus one position for each of its
/// rows. With more rows, a conversion serves more queries, but each row then computes more
/// positions that it does not see.
pub fn rows(group: u32, window: Option<u32>) -> u32 {
    let most = AttentionTiles::rows_of(group, QUERIES);
    let Some(window) = window else { return most };
    let unit = AttentionTiles::unit(group);
    // Relative cost of a query. The unit is the work of one query on one position.
    let cost =
        |rows: u32| (f64::from(window) + f64::from(rows)) * (1.0 + CONVERSION / (f64::from(rows) * f64::from(group)));
    let rows = (1..=most / unit).map(|units| units * unit);
    rows.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(most)
}

/// Returns the maximum number of rows of an item in a step of up to [`SHORT_ROWS`] rows. `rows` is
/// the maximum of the kernel.
pub fn short_rows(group: u32, rows: u32) -> u32 {
    rows.min(AttentionTiles::rows_of(group, QUERIES / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_windows_have_few_rows_per_item() {
        let rows = |window, groups: [u32; 4]| groups.map(|group| rows(group, window));
        assert_eq!(rows(None, [1, 3, 8, 64]), [256, 64, 32, 4]);
        assert_eq!(rows(Some(128), [1, 3, 8, 64]), [64, 32, 20, 4]);
        assert_eq!(rows(Some(1024), [1, 3, 8, 64]), [160, 64, 32, 4]);
        assert_eq!(rows(Some(1), [1, 3, 8, 64]), [32, 32, 4, 1]);
        assert_eq!(rows(Some(u32::MAX), [1, 3, 8, 64]), [256, 64, 32, 4]);
    }
}
