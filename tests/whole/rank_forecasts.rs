//! Forecasts of the speed of models on several ranks.

use std::fs;

use crate::support::{demo_model, ixc, scratch, shared, stderr, stdout};
use ixc::cluster::machines::{self, Machines};
use ixc::cluster::{self, ClusterRequest};
use ixc::model::Model;
use ixc::passes::shard::Division;

/// Returns the program's report for a golden model. The machines in it have round numbers.
fn report(model: &str, ranks: &str) -> String {
    stdout(ixc(["simulate", model, "--ranks", ranks, "--machines", "round", "--position", "100"]))
}

#[test]
fn reports_of_golden_models_on_2_and_4_ranks() {
    let Some(golden) = shared("golden/models") else { return };
    let model = golden.join("mixtral-q4_k_m.gguf");
    let model = model.to_str().unwrap();
    insta::assert_snapshot!("reports", format!("{}\n{}", report(model, "2"), report(model, "4")));
}

#[test]
fn exchanges_of_a_forecast_are_those_of_the_graphs() {
    for (by, op) in [("experts", "all_reduce"), ("layers", "send"), ("tensors", "all_gather")] {
        let ranks = ["0", "1"].map(|rank| {
            let set = [format!("shard.rank={rank}"), format!("shard.by={by}")];
            stdout(ixc(["dump", "--after", "shard", "--set", "shard.ranks=2", "--set", &set[0], "--set", &set[1]]))
        });
        let count = |text: &String, op: &str| text.matches(&format!("= {op} %")).count() as u64;
        let model = Model::open(&demo_model()).unwrap();
        let request =
            ClusterRequest { ranks: 2, division: Division::ALL.into_iter().find(|d| d.word() == by), position: 0 };
        let forecast = cluster::forecast(&model.arch.module, &machines::find("round").unwrap(), &request).unwrap();
        let exchanges = forecast.decode.exchanges;
        let found = match op {
            "send" => exchanges.send,
            "all_gather" => exchanges.all_gather,
            _ => exchanges.all_reduce,
        };
        let expected = if op == "send" { ranks.iter().map(|text| count(text, op)).sum() } else { count(&ranks[0], op) };
        assert_eq!(found, expected, "{by}");
        assert!(found > 0, "{by}");
    }
}

#[test]
fn auto_takes_the_fastest_division_and_slower_machines_are_never_faster() {
    let model = Model::open(&demo_model()).unwrap();
    let module = &model.arch.module;
    let round = machines::find("round").unwrap();
    let seconds = |machines: &Machines, ranks: u32, division: Option<Division>| {
        let forecast = cluster::forecast(module, machines, &ClusterRequest { ranks, division, position: 64 }).unwrap();
        [forecast.decode.seconds, forecast.prefill.seconds]
    };
    for ranks in [2, 4] {
        let each = Division::ALL.map(|division| seconds(&round, ranks, Some(division))[0]);
        let least = each.into_iter().fold(f64::INFINITY, f64::min);
        assert_eq!(seconds(&round, ranks, None)[0], least);
        let choice = cluster::choose(module, &round, ranks).unwrap();
        assert!(choice.reason.contains(choice.division.word()) && choice.reason.contains(" ms"), "{}", choice.reason);
        for division in Division::ALL {
            let fast = seconds(&round, ranks, Some(division));
            let changes: [fn(&mut Machines); 5] = [
                |machines| machines.inside.latency_seconds *= 3.0,
                |machines| machines.between.bytes_per_second /= 3.0,
                |machines| machines.between.message_seconds *= 3.0,
                |machines| machines.socket.memory_bytes_per_second /= 3.0,
                |machines| machines.socket.barrier_seconds *= 3.0,
            ];
            for change in changes {
                let mut slower = round.clone();
                change(&mut slower);
                let slow = seconds(&slower, ranks, Some(division));
                assert!(slow[0] >= fast[0] && slow[1] >= fast[1], "{ranks} ranks by {}", division.word());
            }
        }
    }
}

#[test]
fn experts_beyond_memory_are_read_from_the_drive() {
    let model = Model::open(&demo_model()).unwrap();
    let mut machines = machines::find("round").unwrap();
    let request = ClusterRequest { ranks: 2, division: Some(Division::Experts), position: 0 };
    let forecast = |machines: &Machines| cluster::forecast(&model.arch.module, machines, &request);
    let in_memory = forecast(&machines).unwrap().decode;
    // The socket's memory holds half of the rank's experts, and all of its other weights.
    machines.socket.memory_bytes = in_memory.ranks[0].weights * 3 / 4;
    let streamed = forecast(&machines).unwrap().decode;
    assert!(streamed.mean.drive > 0.0 && in_memory.mean.drive == 0.0 && streamed.seconds > in_memory.seconds);
    machines.drive = None;
    assert!(forecast(&machines).unwrap_err().to_string().contains("round describes no drive"));
    machines.socket.memory_bytes = 1000;
    assert!(forecast(&machines).unwrap_err().to_string().contains("a socket has only 1000 bytes of memory"));
}

#[test]
fn invalid_machines_and_options_are_refused() {
    let folder = scratch("rank-forecasts");
    let file = folder.join("machines.toml");
    for (text, status, says) in [
        ("sockets = \u{1b}[2J", 65, "machines.toml: TOML parse error"),
        ("name = \"a\"\nsockets = 2\n", 65, "missing field"),
        ("#".repeat(1 << 17).as_str(), 65, "machines.toml"),
    ] {
        fs::write(&file, text).unwrap();
        let output = ixc(["simulate", "--ranks", "2", "--machines", file.to_str().unwrap()]).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(status) && said.contains(says), "{:?} {said}", output.status);
        assert!(!said.contains('\u{1b}'), "{said}");
    }
    for (options, says) in [
        (&["--ranks", "0"][..], "1..=1024"),
        (&["--ranks", "2", "--machines", "none"], "xeon-6980p-rdma, xeon-8575c, round"),
        (&["--shard", "layers"], "--ranks"),
        (&["--ranks", "2", "-p", "x"], "cannot be used with"),
    ] {
        let output = ixc(["simulate"].iter().chain(options)).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{options:?}: {}", stderr(&output));
    }
    // The demo model has only 4 layers, fewer than ranks.
    let output = ixc(["simulate", "--ranks", "64", "--shard", "layers"]).output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("points between its layers"), "{}", stderr(&output));
}

#[test]
fn the_division_among_ranks_is_explained() {
    let explain = |more: &[&str]| {
        let ranks = ["explain", "--target", "avx2", "--ranks", "2", "--machines", "round"];
        stdout(ixc([&ranks, more].concat()))
    };
    let text = explain(&["--pass", "shard"]);
    assert!(text.contains("\nshard: division of the model\n  chosen    "), "{text}");
    assert!(text.contains(" ms for each token on 2 ranks of round; bound: "), "{text}");
    assert_eq!(text.matches("\n  rejected  ").count(), 2, "{text}");
    // If the division is requested by an option, no alternative is listed.
    let requested = explain(&["--pass", "shard", "--shard", "layers"]);
    assert!(requested.starts_with("0 decisions"), "{requested}");
    // All other decisions are those of rank 0, which has half of the layers.
    let layers = |text: String| [text.contains("layers 0-1"), text.contains("layers 0-3")];
    assert_eq!(layers(explain(&["--pass", "tile", "--shard", "layers"])), [true, false]);
}

#[test]
fn links_are_measured_between_processes_only() {
    for (options, says) in [
        (&["--ranks"][..], "run `mpirun -n 2 ixc doctor --ranks`"),
        (&["-o", "machines.toml"], "--ranks"),
        (&["--ranks", "--drive", "x"], "cannot be used with"),
    ] {
        let output = ixc(["doctor"].iter().chain(options)).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn page_of_a_forecast_is_self_contained() {
    let page = stdout(ixc(["simulate", "--ranks", "4", "--machines", "round", "--html", "-"]));
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    assert_eq!(ixc_testing::pages::forbidden(&page.replace(data, ""), "ixc"), [""; 0]);
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["forecast"]["decode"]["ranks"].as_array().unwrap().len(), 4);
    let json = stdout(ixc(["simulate", "--ranks", "4", "--machines", "round", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["schema"], &json["decode"]), (&"ixc.ranks.v1".into(), &data["forecast"]["decode"]));
    assert!(page.contains("<title>(built-in demo model) on 4 ranks</title>"));
}
