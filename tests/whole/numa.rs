//! Ranks and copies of weights on NUMA nodes. Bits are the same on any topology, and memory pages
//! are on the right nodes.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::support::server::Server;
use crate::support::{demo_model, engines, ixc, scratch, stderr, stdout};
use ixc::compile;
use ixc::model::Model;
use ixc::passes::shard::Division;
use ixc::ranks::compile_ranks;
use ixc::runtime::engine::{self, Engine};
use ixc::runtime::file::PlanFile;
use ixc::runtime::homes::NodeUse;
use ixc::runtime::load::LoadError;
use ixc::runtime::numa::Numa;
use ixc::runtime::numa::error::NumaError;
use ixc::runtime::numa::home::nodes_of;
use ixc::runtime::numa::topology::Topology;
use ixc::runtime::processors::Machine;
use ixc::runtime::streaming::store::Config;
use ixc::targets::Target;
use serde_json::json;

/// Returns a topology that divides this machine's processors among `count` NUMA nodes; the real
/// machine may have fewer nodes. If there are more nodes than processors, some nodes are empty.
fn described(count: usize) -> Topology {
    let order = Machine::detect().unwrap().order();
    let node = |number: usize| {
        let processors: Vec<String> = order.iter().skip(number).step_by(count).map(usize::to_string).collect();
        let distances: Vec<u32> = (0..count).map(|to| if to == number { 10 } else { 20 }).collect();
        let processors = processors.join(",");
        format!(
            "[[nodes]]\nnumber = {number}\nprocessors = \"{processors}\"\nmemory_bytes = 1024\ndistances = {distances:?}\n"
        )
    };
    Topology::parse("a test", &(0..count).map(node).collect::<String>()).unwrap()
}

/// Compiles the demo model for ranks. `experts` is the memory for streamed experts.
fn plans(ranks: u32, by: Division, experts: Option<u64>) -> PlanFile {
    let model = Model::open(&demo_model()).unwrap();
    let options = compile::CompileOptions { target: Some(Target::AVX2), expert_memory: experts, ..Default::default() };
    let mut plans = compile_ranks(&model, &options, &engine::EngineOptions::default(), ranks, by).unwrap();
    let other_ranks = plans.split_off(1);
    PlanFile { other_ranks, ..PlanFile::new(plans.remove(0)) }
}

fn options(numa: Numa, topology: Option<Topology>, budget: u64) -> engine::EngineOptions {
    engine::EngineOptions {
        numa,
        topology: topology.map(Arc::new),
        threads: Some(2),
        sequences: 2,
        stream: Config { budget, ..Config::default() },
        backend: engines::native(Target::AVX2),
        ..engine::EngineOptions::default()
    }
}

fn load(file: PlanFile, numa: Numa, topology: Option<Topology>, budget: u64) -> Result<Engine, LoadError> {
    Engine::load_file(file, Path::new(""), &options(numa, topology, budget))
}

/// Returns the bits of logits: of a prompt and a token after it, and of a prompt in a second
/// sequence.
fn bits(engine: &mut Engine) -> Vec<u32> {
    let mut logits = engine.step(&[1, 5, 9, 3, 7], &[0, 4]).unwrap().to_vec();
    logits.extend(engine.step(&[11], &[0]).unwrap());
    let other = engine.add_sequence().unwrap();
    let addition = engine::Addition { sequence: other, tokens: &[4, 2], outputs: &[1] };
    logits.extend(engine.step_batch(&[addition]).unwrap());
    engines::bits(&logits)
}

/// Returns the resident bytes of each memory area with these contents. Checks that all of them are
/// on the area's home node.
fn local_bytes(uses: &[NodeUse], what: &str) -> Vec<u64> {
    let of = uses.iter().filter(|of_rank| of_rank.what == what);
    let local = of.map(|of_rank| {
        let bytes = of_rank.bytes.as_ref().unwrap();
        assert_eq!(bytes.on(&of_rank.home), bytes.all(), "{of_rank:?}");
        bytes.all()
    });
    local.collect()
}

#[test]
fn ranks_on_nodes_have_the_bits_of_any_topology() {
    for (ranks, by, experts) in
        [(2, Division::Tensors, None), (3, Division::Experts, None), (2, Division::Experts, Some(3 << 20))]
    {
        let file = || plans(ranks, by, experts);
        let budget = experts.unwrap_or(0);
        let expected = bits(&mut load(file(), Numa::Off, None, budget).unwrap());
        for nodes in [1, 2, 4] {
            let mut engine = load(file(), Numa::Cut, Some(described(nodes)), budget).unwrap();
            assert!(bits(&mut engine) == expected, "{ranks} ranks by {}, {nodes} nodes", by.word());
        }
    }
}

#[test]
fn pages_of_each_rank_lie_on_its_node() {
    let file = plans(2, Division::Tensors, None);
    let weights: Vec<u64> = [&file.plan]
        .into_iter()
        .chain(&file.other_ranks)
        .map(|plan| plan.weights.iter().map(|weight| weight.bytes).sum())
        .collect();
    let mut engine = load(file, Numa::Cut, None, 0).unwrap();
    bits(&mut engine);
    let uses = engine.node_use();
    if let Some(NodeUse { bytes: Err(why), .. }) = uses.first() {
        return println!("NOT RUN: the system does not report nodes of pages: {why}");
    }
    let found = local_bytes(&uses, "weights");
    // Packed weights are larger than stored ones. No rank's memory has pages of a file.
    assert!(
        found.len() == 2 && found.iter().zip(&weights).all(|(found, stored)| found >= stored),
        "{found:?} {weights:?}"
    );
    assert!(local_bytes(&uses, "states").iter().all(|bytes| *bytes > 0), "{uses:?}");
    assert!(local_bytes(&uses, "activations").iter().all(|bytes| *bytes > 0), "{uses:?}");
    if let Some(refusal) = uses.iter().find_map(|of_rank| of_rank.refusal.as_ref()) {
        println!("NOT RUN: the binding of memory: {refusal}");
    }
}

#[test]
fn copies_of_weights_give_the_bits_of_one() {
    let file = || plans(1, Division::Tensors, None);
    let expected = bits(&mut load(file(), Numa::Off, None, 0).unwrap());
    for nodes in [1, 2] {
        let mut engine = load(file(), Numa::Mirror, Some(described(nodes)), 0).unwrap();
        assert!(bits(&mut engine) == expected, "{nodes} nodes");
        // Fewer threads use the same copies.
        engine.truncate(0);
        engine.use_threads(1).unwrap();
        let again = engines::bits(engine.step(&[1, 5, 9, 3, 7], &[0, 4]).unwrap());
        assert!(expected.starts_with(&again), "{nodes} nodes, one thread");
        let one = engine::EngineOptions { threads: Some(1), ..options(Numa::Mirror, Some(described(nodes)), 0) };
        let one = Engine::load_file(file(), Path::new(""), &one).unwrap();
        assert_eq!(one.node_use().len(), 1, "a node without threads has no copy");
        let uses = engine.node_use();
        // There are no more copies than threads.
        let copies = nodes.min(Machine::detect().unwrap().order().len());
        assert_eq!(uses.len(), copies, "{uses:?}");
        if let Some(why) = uses.iter().find_map(|copy| copy.bytes.as_ref().err()) {
            println!("NOT RUN: the system does not report nodes of pages: {why}");
            continue;
        }
        let bytes: Vec<u64> = uses.iter().map(|copy| copy.bytes.as_ref().unwrap().all()).collect();
        assert!(bytes[0] > 0 && bytes.windows(2).all(|two| two[0] == two[1]), "{bytes:?}");
    }
    let streamed = load(plans(1, Division::Tensors, Some(2 << 20)), Numa::Mirror, Some(described(2)), 2 << 20);
    assert!(matches!(streamed, Err(LoadError::Numa(NumaError::MirrorStreamed))), "{streamed:?}");
    let ranks = load(plans(2, Division::Tensors, None), Numa::Mirror, Some(described(2)), 0);
    assert!(matches!(ranks, Err(LoadError::Numa(NumaError::MirrorRanks { ranks: 2 }))), "{ranks:?}");
    let one = load(file(), Numa::Cut, Some(described(2)), 0);
    assert!(matches!(one, Err(LoadError::Numa(NumaError::OneRank { nodes: 2 }))), "{one:?}");
    assert!(bits(&mut load(file(), Numa::Auto, Some(described(2)), 0).unwrap()) == expected);
}

/// Makes the system refuse `mbind` in the processes of a command, as containers do.
fn refuse_mbind(command: &mut Command) {
    let statement =
        |code: u32, jump_if_false: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: jump_if_false, k };
    let mut filter = [
        // In the data that the filter reads, the system call's number is the first field.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_mbind as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    // SAFETY: the child makes only system calls that are allowed between fork and exec. The filter
    // lives in the closure.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            match libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

#[test]
fn a_refusal_to_bind_memory_is_one_warning() {
    let run = || ixc(["run", "demo", "-p", "one", "--raw", "-n", "4", "--temp", "0", "--numa", "mirror", "--stats"]);
    let expected = run().output().unwrap();
    let mut refused = run();
    refuse_mbind(&mut refused);
    let refused = refused.output().unwrap();
    let message = stderr(&refused);
    assert!(refused.status.success() && refused.stdout == expected.stdout, "{message}");
    assert_eq!(message.matches("memory is not bound to NUMA nodes").count(), 1, "{message}");
    for says in ["Operation not permitted", "a container needs the capability SYS_NICE"] {
        assert!(message.contains(says), "{says}: {message}");
    }
}

#[test]
fn metrics_have_the_bytes_of_nodes() {
    let own = [1u8; 100];
    if let Err(why) = nodes_of(own.as_ptr(), own.len() as u64) {
        return println!("NOT RUN: the system does not report nodes of pages: {why}");
    }
    // The server's sandbox also allows the query for the nodes of pages.
    let server = Server::start(&["--numa", "mirror"]);
    server.until("the use of nodes", |server| server.get("/metrics").1.contains("numa_local_bytes"));
    let bytes = |name| server.metrics().sum(name, &[("rank", "0"), ("contents", "weights")]);
    let (local, remote) = (bytes("ixc:numa_local_bytes"), bytes("ixc:numa_remote_bytes"));
    assert!(local > 4e6 && remote == 0.0, "{local} {remote}");
    let server = Server::start(&[]);
    let (status, _) = server.post("/v1/completions", &json!({"prompt": "The", "max_tokens": 4}));
    assert_eq!(status, 200);
    server.until("the steps of the answer", |server| server.metric("n_decode_total") > 0.0);
    assert!(!server.get("/metrics").1.contains("numa"));
}

#[test]
fn the_program_divides_a_model_and_describes_nodes() {
    let folder = scratch("numa");
    let described = folder.join("nodes.toml");
    let node = |number, processors, distances| {
        format!(
            "[[nodes]]\nnumber = {number}\nprocessors = \"{processors}\"\nmemory_bytes = 17179869184\ndistances = {distances}\n"
        )
    };
    std::fs::write(&described, node(0, "0-3", "[10, 21]") + &node(1, "4-7", "[21, 10]")).unwrap();
    let mut doctor = ixc(["doctor", "--no-bandwidth", "--topology"]);
    doctor.arg(&described);
    let report = stdout(doctor);
    let lines: Vec<&str> = report.lines().skip_while(|line| !line.starts_with("NUMA")).take(4).collect();
    assert_eq!(
        lines,
        [
            "NUMA       node 0: 16 GiB, CPUs 0-3, distances 10 21",
            "           node 1: 16 GiB, CPUs 4-7, distances 21 10",
            "           --numa cut: rank 0 on node 0, 4 threads on CPUs 0-3",
            "           --numa cut: rank 1 on node 1, 4 threads on CPUs 4-7",
        ]
    );
    let limited = format!("allowed_nodes = \"1\"\n{}", std::fs::read_to_string(&described).unwrap());
    std::fs::write(&described, limited).unwrap();
    let mut doctor = ixc(["doctor", "--no-bandwidth", "--topology"]);
    doctor.arg(&described);
    let report = stdout(doctor);
    for line in [
        "node 0: 16 GiB, CPUs 0-3, distances 10 21, memory not allowed by the control group\n",
        "node 1: 16 GiB, CPUs 4-7, distances 21 10\n",
    ] {
        assert!(report.contains(line), "{report}");
    }
    std::fs::write(&described, "nodes = 1").unwrap();
    let mut doctor = ixc(["doctor", "--no-bandwidth", "--topology"]);
    let refused = doctor.arg(&described).output().unwrap();
    assert!(stderr(&refused).contains("nodes.toml: "), "{}", stderr(&refused));
    // This machine may have one node or several.
    let run = |numa| ixc(["run", "demo", "-p", "one", "--raw", "-n", "4", "--temp", "0", "--numa", numa, "--stats"]);
    let [off, mirror, cut, auto] = ["off", "mirror", "cut", "auto"].map(|numa| run(numa).output().unwrap());
    for (divided, numa) in [(cut, "cut"), (auto, "auto")] {
        assert!(divided.status.success() && !divided.stdout.is_empty(), "{numa}: {}", stderr(&divided));
    }
    assert!(off.status.success() && off.stdout == mirror.stdout, "{}", stderr(&mirror));
    assert!(stderr(&mirror).contains("copy 0 on node"), "{}", stderr(&mirror));
}
