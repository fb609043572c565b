//! A forecast as a web page: one file that needs no network. It draws the time of each rank by
//! cause, for decode and for prefill, and lists links and divisions.

use ixc_files::Kind;
use serde::Serialize;

use super::ClusterForecast;
use super::machines::Machines;

const PAGE: &str = include_str!("page.html");

#[derive(Serialize)]
struct Data<'a> {
    model: &'a str,
    forecast: &'a ClusterForecast,
    machines: &'a Machines,
}

/// The file kind of these pages.
pub const KIND: Kind = Kind {
    name: "page of a forecast",
    is: |head| {
        let generator = br#"<meta name="generator" content="ixc">"#;
        head.windows(generator.len()).any(|window| window == generator)
    },
    streams: true,
    private: false,
};

/// Returns the page. `model` is the name of the model.
pub fn page(model: &str, forecast: &ClusterForecast, machines: &Machines) -> String {
    // Serialisation cannot fail: the data is numbers, strings and lists.
    let json = serde_json::to_string(&Data { model, forecast, machines }).unwrap_or_else(|_| "null".to_owned());
    ixc_files::page::fill_page(PAGE, &format!("{model} on {} ranks", forecast.ranks), &json)
}
