//! Records of expert use. Runs and a server count the use of experts and write records. The most
//! used experts are pinned in memory. Invalid records are refused.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::server::{Server, end};
use crate::support::{demo_model, ixc, scratch, stderr, stdout};

const TEXT: [&str; 9] = ["run", "--raw", "-p", "The borrow checker", "-n", "24", "--temp", "0", "-q"];

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Returns the least budget that streams the demo model, plus `more` MiB. The process's other
/// memory varies between runs by about a megabyte.
fn budget(more: u64) -> String {
    let refused = ixc(TEXT).arg(demo_model()).args(["--memory", "1MiB"]).output().unwrap();
    let message = stderr(&refused);
    let least = message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap();
    format!("{}MiB", least.parse::<u64>().unwrap() + more)
}

/// Runs the demo model. Returns the text, and the record that the run wrote.
fn run(more: &[&str], record: &Path) -> (String, Value) {
    let mut command = ixc(TEXT);
    command.arg(demo_model()).args(more).arg("--expert-stats").arg(record);
    (stdout(command), read(record))
}

#[test]
fn expert_counts_are_independent_of_residency_and_pin_experts() {
    let folder = scratch("experts_counted");
    let (hot, other) = (folder.join("hot.json"), folder.join("other.json"));
    let (expected, resident) = run(&["-t", "2"], &hot);
    let tokens = resident["tokens"].as_u64().unwrap();
    let chosen = resident["chosen"].as_array().unwrap();
    assert!(tokens >= 24 && chosen.len() > 1 && resident.get("streamed").is_none(), "{resident}");
    let sums: Vec<u64> = chosen
        .iter()
        .map(|layer| layer.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum())
        .collect();
    assert!(sums.iter().all(|sum| *sum == sums[0] && sum % tokens == 0 && *sum > 0), "{sums:?}");
    let weights = resident["weights"].as_array().unwrap();
    assert!(weights.iter().all(|name| name.as_str().unwrap().contains("exps")), "{weights:?}");
    assert_eq!(weights.len(), chosen.len());

    // The budget has room for all experts that the text uses, and pinned experts are read at the
    // start. With less memory, variations of the process's other memory could be larger than the
    // effect of pinning.
    let memory = budget(5);
    let streamed = ["--memory", &memory, "-t", "1", "--prefetch", "off"];
    let (text, cold) = run(&streamed, &other);
    assert_eq!((text, &cold["chosen"], &cold["tokens"]), (expected.clone(), &resident["chosen"], &resident["tokens"]));
    let sum = |record: &Value, what: &str| -> u64 {
        record["streamed"].as_array().unwrap().iter().map(|layer| layer[what].as_u64().unwrap()).sum()
    };
    assert!(sum(&cold, "misses") > 0 && sum(&cold, "bytes") > 0 && sum(&cold, "pinned") == 0, "{cold}");

    // If the experts that the whole text used are pinned, fewer experts are missed.
    let pinned = [&streamed[..], &["--pin-experts", hot.to_str().unwrap()]].concat();
    let (text, warm) = run(&pinned, &other);
    assert_eq!((text, &warm["chosen"]), (expected.clone(), &resident["chosen"]));
    assert!(sum(&warm, "pinned") > 0 && sum(&warm, "misses") < sum(&cold, "misses"), "{warm} {cold}");
    let all = [&pinned[..], &["--pin-percent", "1"]].concat();
    assert_eq!(sum(&run(&all, &other).1, "pinned"), 0);

    // If both options name the same file, counts are added up. In the first round, the file does
    // not exist yet.
    let grown = folder.join("grown.json");
    let both = [&streamed[..], &["--pin-experts", grown.to_str().unwrap()]].concat();
    for round in 1..=2 {
        let (text, record) = run(&both, &grown);
        assert_eq!((text, &record["tokens"]), (expected.clone(), &json!(round * tokens)));
        assert_eq!(sum(&record, "pinned") > 0, round > 1);
    }
    // A missing record of pinned experts is an error, unless the run writes this file. Overwriting
    // a file that is not a record is also an error.
    let mut missing = ixc(TEXT);
    missing.arg(demo_model()).args(["--pin-experts", "missing.json"]);
    assert_eq!(missing.output().unwrap().status.code(), Some(66));
    fs::write(&other, "{}").unwrap();
    let refused = ixc(TEXT).arg(demo_model()).arg("--expert-stats").arg(&other).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert_eq!(fs::read_to_string(&other).unwrap(), "{}");
}

/// Checks that the JSON of `--stats=json` and of `bench` has statistics of expert prediction only
/// if experts are streamed.
#[test]
fn prediction_statistics_are_reported_as_json() {
    let memory = budget(3);
    let run = |more: &[&str]| -> Value {
        let words = ["run", "--raw", "-p", "The borrow checker", "-n", "24", "--temp", "0", "--stats=json"];
        let mut command = ixc(words);
        command.arg(demo_model()).args(more);
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert!(output.status.success(), "{said}");
        serde_json::from_str(said.lines().last().unwrap()).unwrap()
    };
    assert!(run(&[])["prefetch"].is_null());
    let facts = &run(&["--memory", &memory, "--prefetch", "previous"])["prefetch"];
    assert!(facts["now"].as_str().unwrap().contains("previous") && facts["decided"].is_null(), "{facts:#}");
    let strategies = facts["strategies"].as_array().unwrap();
    let previous = strategies.iter().find(|each| each["strategy"] == "previous").unwrap();
    let number = |of: &Value, what: &str| of[what].as_u64().unwrap_or_else(|| panic!("{what}: {of:#}"));
    let (all, layers) = (&previous["all"], previous["layers"].as_array().unwrap());
    for what in ["chosen", "predicted", "right", "useful", "useless", "wasted_bytes"] {
        assert_eq!(layers.iter().map(|layer| number(layer, what)).sum::<u64>(), number(all, what), "{what}");
    }
    assert!(layers.len() == 4 && number(all, "predicted") >= number(all, "right"), "{previous:#}");
    let recall = number(all, "right") as f64 / number(all, "chosen") as f64;
    assert!((all["recall"].as_f64().unwrap() - recall).abs() < 1e-9, "{all:#}");
    // Each byte that was read because of a prediction was used, wasted, or is still in memory.
    assert!(number(facts, "read_bytes") >= number(facts, "right_bytes") + number(facts, "wasted_bytes"), "{facts:#}");
    let auto = &run(&["--memory", &memory])["prefetch"];
    assert!(auto["decided"]["chosen"].is_string() && auto["decided"]["rejected"].is_array(), "{auto:#}");
    let bench = |more: &[&str]| -> Value {
        let mut command = ixc(["bench", "-p", "0", "-n", "8", "-r", "1", "--json"]);
        command.arg(demo_model()).args(more);
        serde_json::from_str(&stdout(command)).unwrap()
    };
    let rows = bench(&["--memory", &memory]);
    assert!(rows["rows"][0]["prefetch"]["strategies"].is_array(), "{rows:#}");
    assert!(bench(&[])["rows"][0].get("prefetch").is_none());
}

#[test]
fn invalid_expert_use_records_are_refused() {
    let folder = scratch("experts_refused");
    let (hot, wrong) = (folder.join("hot.json"), folder.join("wrong.json"));
    let (_, right) = run(&[], &hot);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut record = right.clone();
        // Records written by hand have no checksum.
        record.as_object_mut().unwrap().remove("crc32");
        change(&mut record);
        record.to_string()
    };
    let layers = right["chosen"].as_array().unwrap().len();
    for (text, expected) in [
        (String::new(), "is not a record of expert use"),
        ("{\"schema\":".repeat(1 << 16), "is not a record of expert use"),
        (with(&|record| record["schema"] = json!("ixc.experts.v9")), "has schema \"ixc.experts.v9\", expected"),
        (with(&|record| record["chosen"][0][0] = json!(-1)), "invalid value: integer `-1`"),
        (with(&|record| record["chosen"][0][0] = json!("many")), "invalid type: string"),
        (
            with(&|record| record["chosen"].as_array_mut().unwrap().push(json!([1]))),
            &*format!("{} layers with experts; expected {layers}", layers + 1),
        ),
        (
            with(&|record| record["chosen"][1].as_array_mut().unwrap().push(json!(1))),
            "expert layer 1 of the record has",
        ),
    ] {
        fs::write(&wrong, &text).unwrap();
        for more in [&[][..], &["--memory", "64MiB"]] {
            let mut command = ixc(TEXT);
            command.arg(demo_model()).args(more).arg("--pin-experts").arg(&wrong);
            let refused = command.output().unwrap();
            let message = stderr(&refused);
            assert!(refused.status.code() == Some(65) && message.contains(expected), "{expected}: {message}");
        }
    }
}

#[test]
fn server_reports_expert_use_and_evicts_experts() {
    let folder = scratch("experts_served");
    let record = folder.join("hot.json");
    let (demo, memory) = (demo_model(), budget(3));
    let path = record.to_str().unwrap();
    let server = Server::for_model(
        demo.to_str().unwrap(),
        &["--memory", &memory, "--parallel", "1", "--expert-stats", path, "--api-key", "one"],
    );
    let key = "x-api-key: one\r\n";
    let ask = |method: &str, path: &str, body: &str| {
        let (status, text) = server.ask(method, path, key, body);
        (status, serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    };
    assert_eq!(server.get("/experts").0, 401);
    let (status, before) = ask("GET", "/experts", "");
    assert_eq!((status, &before["schema"], &before["tokens"]), (200, &json!("ixc.experts.v1"), &json!(0)), "{before}");
    let request = json!({"prompt": "The borrow checker", "n_predict": 12, "temperature": 0}).to_string();
    let (_, first) = ask("POST", "/completion", &request);
    let (_, after) = ask("GET", "/experts", "");
    let tokens = after["tokens"].as_u64().unwrap();
    assert!(tokens >= 12, "{after}");
    let held = |record: &Value| -> u64 {
        record["streamed"].as_array().unwrap().iter().map(|layer| layer["in_memory"].as_u64().unwrap()).sum()
    };
    assert!(held(&after) > 0);
    let (status, one) = ask("POST", "/experts/evict", r#"{"layer": 1}"#);
    assert_eq!((status, &one["evicted"]), (200, &after["streamed"][1]["in_memory"]), "{one}");
    assert!(one["bytes"].as_u64().unwrap() > 0);
    let (_, rest) = ask("POST", "/experts/evict", "");
    assert_eq!(rest["evicted"].as_u64().unwrap() + one["evicted"].as_u64().unwrap(), held(&after));
    assert_eq!(held(&ask("GET", "/experts", "").1), 0);
    let (_, again) = ask("POST", "/completion", &request);
    assert_eq!(again["content"], first["content"]);
    let (status, wrong) = ask("POST", "/experts/evict", r#"{"layer": 99}"#);
    assert!(status == 400 && wrong["error"]["message"].as_str().unwrap().contains("no expert layer 99"), "{wrong}");
    assert_eq!(ask("POST", "/experts/evict", r#"{"pinned": 3}"#).0, 400);
    let last = ask("GET", "/experts", "").1;
    end(server);
    let written = read(&record);
    assert_eq!((&written["chosen"], &written["tokens"]), (&last["chosen"], &last["tokens"]));

    // Without streaming, the use of experts is counted, but no experts can be evicted.
    let server = Server::start(&[]);
    server.post("/completion", &json!({"prompt": "x", "n_predict": 1}));
    let used: Value = serde_json::from_str(&server.get("/experts").1).unwrap();
    assert!(used["tokens"].as_u64().unwrap() > 0 && used.get("streamed").is_none(), "{used}");
    let (status, refused) = server.post("/experts/evict", &json!({}));
    assert!(status == 501 && refused["error"]["message"].as_str().unwrap().contains("not streamed"), "{refused}");
}
