//! Setting of a measurement: model, options, machine, version and time. It identifies a
//! measurement, so that later ones can be compared with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use ixc_compile::build::{BUILD, Build};
use ixc_compile::compile;
use ixc_compile::machine::features::{cpu_name, features};
use ixc_compile::machine::system;
use ixc_generate::loaded_model::PlanOrModel;
use ixc_runtime::processors::Pin;
use serde::Serialize;

use super::{Args, given};
use crate::{invocation, matches_of};

/// Setting of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    ixc: Build,
    /// Start of the measurement in UTC, as in RFC 3339.
    time: String,
    /// System and processor architecture.
    os: String,
    cpu: Cpu,
    /// Bytes of memory of the machine.
    memory: Option<u64>,
    model: Model,
    options: SettingOptions,
}

#[derive(Clone, Debug, Serialize)]
struct Cpu {
    name: String,
    /// CPUs that this process may use.
    threads: usize,
    features: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
struct Model {
    /// The model's name in its metadata; for a plan, the architecture.
    name: Option<String>,
    architecture: Option<String>,
    file: String,
    /// Whether the model is a plan.
    plan: bool,
    /// Total bytes of all files.
    bytes: u64,
    parameters: u64,
    /// Bytes of weights in each block format.
    formats: BTreeMap<String, u64>,
    /// Sizes and checksums of the files.
    identity: Vec<FileIdentity>,
}

/// Size and checksum that identify a file.
#[derive(Clone, Debug, Serialize)]
struct FileIdentity {
    bytes: u64,
    /// CRC-32 of everything before the tensors; for a plan, that of the model file.
    header_crc32: String,
}

impl FileIdentity {
    fn new(bytes: u64, crc: u32) -> FileIdentity {
        FileIdentity { bytes, header_crc32: format!("{crc:08x}") }
    }
}

#[derive(Clone, Debug, Serialize)]
struct SettingOptions {
    repetitions: u32,
    memory: Option<u64>,
    defer: u32,
    /// Options of passes that the user gave, in the form of `--set`.
    passes: String,
    /// Whether threads are bound to processors.
    pin: &'static str,
    /// Identity of the content of the file with tuned tilings, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tuned: Option<String>,
    /// All other given options, by name. Files are identified by their content.
    given: BTreeMap<String, String>,
    /// All arguments, as given.
    arguments: Vec<String>,
}

impl Setting {
    /// Returns the setting of a measurement of an open plan or model that begins now.
    ///
    /// # Errors
    /// Never for options that clap has parsed.
    pub fn new(
        args: &Args,
        compile: &compile::CompileOptions,
        opened: PlanOrModel<'_>,
    ) -> Result<Setting, ixc_error::Error> {
        let present = features().into_iter().filter(|feature| feature.present);
        let options = args.streaming.memory();
        let given = matches_of("bench").map(|(command, matches)| given::given_options(&command, &matches));
        Ok(Setting {
            ixc: BUILD,
            time: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            os: os(),
            cpu: Cpu {
                name: cpu_name(),
                threads: std::thread::available_parallelism().map_or(1, usize::from),
                features: present.map(|feature| feature.name).collect(),
            },
            memory: system::memory().total,
            model: model(args.model.path(), opened),
            options: SettingOptions {
                repetitions: args.repetitions,
                memory: options,
                defer: args.streaming.defer(),
                passes: args.streaming.pass_options()?.to_string(),
                pin: Pin::ALL.iter().find(|(_, pin)| *pin == args.pin.pin).map_or("", |(name, _)| name),
                tuned: compile.tuned.as_ref().and_then(|tuned| given::content(&tuned.path)),
                given: given.unwrap_or_default(),
                arguments: invocation::arguments()
                    .iter()
                    .skip(1)
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect(),
            },
        })
    }

    /// Returns the fields as columns of a table, by name.
    pub fn columns(&self) -> Vec<(&'static str, String)> {
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let formats = self.model.formats.iter().map(|(format, bytes)| format!("{format}:{bytes}"));
        vec![
            ("ixc_version", self.ixc.version.to_owned()),
            ("ixc_commit", text(self.ixc.commit)),
            ("time", self.time.clone()),
            ("os", self.os.clone()),
            ("cpu", self.cpu.name.clone()),
            ("cpu_threads", self.cpu.threads.to_string()),
            ("cpu_features", self.cpu.features.join(" ")),
            ("model_name", text(self.model.name.as_deref())),
            ("model_architecture", text(self.model.architecture.as_deref())),
            ("model_file", self.model.file.clone()),
            ("model_bytes", self.model.bytes.to_string()),
            ("model_parameters", self.model.parameters.to_string()),
            ("model_formats", formats.collect::<Vec<_>>().join(" ")),
            (
                "model_identity",
                self.model.identity.iter().map(|file| file.header_crc32.clone()).collect::<Vec<_>>().join(" "),
            ),
            ("machine_memory", self.memory.map_or(String::new(), |bytes| bytes.to_string())),
            ("pass_options", self.options.passes.clone()),
            ("memory", self.options.memory.map_or(String::new(), |bytes| bytes.to_string())),
            ("tuned", text(self.options.tuned.as_deref())),
            (
                "options",
                self.options.given.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; "),
            ),
        ]
    }
}

/// Returns the system, its release, and the processor's architecture: `linux 6.12.0 x86_64`.
fn os() -> String {
    let release = ixc_files::read_system("/proc/sys/kernel/osrelease".as_ref()).unwrap_or_default();
    [std::env::consts::OS, release.trim(), std::env::consts::ARCH]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the description of an open model or plan; without a path, it is the demo model.
fn model(path: Option<&Path>, opened: PlanOrModel<'_>) -> Model {
    let file = path.unwrap_or(Path::new(ixc_compile::demo::NAME)).display().to_string();
    let mut formats: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |format: &str, bytes: u64| {
        let sum = formats.entry(format.to_owned()).or_default();
        *sum = sum.saturating_add(bytes);
    };
    let gguf = match opened {
        PlanOrModel::Model(model) => &model.gguf,
        PlanOrModel::Plan(plan) => {
            plan.weights.iter().for_each(|weight| add(weight.stored.name(), weight.bytes));
            let elements =
                plan.weights.iter().map(|weight| weight.shape.iter().fold(1u64, |n, dim| n.saturating_mul(*dim)));
            let parameters = elements.fold(0, u64::saturating_add);
            let own = path.and_then(|path| std::fs::metadata(path).ok()).map_or(0, |facts| facts.len());
            let bytes = plan.files.iter().fold(own, |sum, file| sum.saturating_add(file.bytes));
            let architecture = Some(plan.architecture.clone());
            let identity = plan.files.iter().map(|file| FileIdentity::new(file.bytes, file.header_crc)).collect();
            return Model { name: None, architecture, file, plan: true, bytes, parameters, formats, identity };
        }
    };
    gguf.tensors().for_each(|tensor| add(tensor.tensor_type().name, tensor.bytes()));
    let text = |key| gguf.metadata().read_optional::<&str>(key).ok().flatten().map(str::to_owned);
    Model {
        name: text("general.name"),
        architecture: text("general.architecture"),
        file,
        plan: false,
        bytes: gguf.files().iter().map(|file| file.data().len() as u64).sum(),
        parameters: gguf.tensors().fold(0, |sum, tensor| sum.saturating_add(tensor.elements())),
        identity: (gguf.files().iter().map(|file| file.identity()))
            .map(|identity| FileIdentity::new(identity.bytes, identity.header_crc))
            .collect(),
        formats,
    }
}
