//! Tests of the GGUF reader with hostile, damaged and split files.

use std::fs;
use std::path::PathBuf;

use ixc_failure::Class;
use ixc_ir::random::Random;
use ixc_model_files::gguf::write::GgufWriter;
use ixc_model_files::gguf::{Array, Gguf, GgufError, TensorType, Value};
use ixc_testing::shared_data::shared_path;

fn good() -> GgufWriter {
    GgufWriter::new()
        .key("general.architecture", "llama")
        .key("tokens", vec!["a", "bc", "", "d"])
        .key("scores", vec![0.5f32, 1.0])
        .key("flag", true)
        .key("bools", Array::Bool(vec![true, false]))
        .f32_tensor("one", &[5], &[1.0, 2.0, 3.0, 4.0, 5.0])
        .zero_tensor("two", TensorType::from_id(12).unwrap(), &[256, 2])
        .f32_tensor("three", &[2, 2, 1, 2], &[0.0; 8])
}

fn read(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::from_bytes("m.gguf".as_ref(), bytes)
}

fn message(writer: GgufWriter) -> String {
    read(writer.finish()).unwrap_err().to_string()
}

/// Checks that the guarantees of [`Gguf`] hold for an accepted file.
fn assert_sound(gguf: &Gguf) {
    let mut ranges: Vec<_> = gguf.tensors().map(|t| (t.file(), t.offset(), t.offset() + t.bytes())).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "overlap: {pair:?}");
    }
    for tensor in gguf.tensors() {
        let file = &gguf.files()[tensor.file()];
        assert!(tensor.offset() + tensor.bytes() <= file.data().len() as u64);
        assert_eq!(tensor.offset() % u64::from(file.alignment()), 0);
        assert_eq!(gguf.tensor_data(tensor).len() as u64, tensor.bytes());
        assert_eq!(tensor.tensor_type().tensor_bytes(tensor.dims()), Some(tensor.bytes()));
        assert!(std::ptr::eq(gguf.tensor(tensor.name()).unwrap(), tensor));
    }
    for (key, value) in gguf.metadata().iter() {
        assert!(std::ptr::eq(gguf.metadata().get(key).unwrap(), value));
        let _ = value.to_string();
    }
}

#[test]
fn written_gguf_reads_back() {
    for version in [2, 3] {
        for alignment in [8, 32, 4096, 65_536] {
            let gguf = read(good().version(version).alignment(alignment).finish()).unwrap();
            assert_sound(&gguf);
            assert_eq!(gguf.files()[0].version(), version);
            let keys = gguf.metadata();
            assert_eq!(keys.read::<&[f32]>("scores").unwrap(), [0.5, 1.0]);
            assert!(keys.read::<bool>("flag").unwrap());
            assert_eq!(keys.get("bools"), Some(&Value::Array(Array::Bool(vec![true, false]))));
            let three = gguf.require_tensor("three").unwrap();
            assert_eq!((three.dims(), three.elements()), (&[2, 2, 1, 2][..], 8));
            assert_eq!(&gguf.tensor_data(gguf.tensor("one").unwrap())[16..], 5f32.to_le_bytes());
        }
    }
}

#[test]
fn bad_gguf_files_match_their_manifest() {
    let Some(dir) = shared_path("bad-gguf") else { return };
    let manifest = fs::read_to_string(dir.join("manifest.tsv")).unwrap();
    let mut wrong = Vec::new();
    for line in manifest.lines().skip(1) {
        let columns: Vec<_> = line.split('\t').collect();
        let (file, expect, class) = (columns[0], columns[1], columns[2]);
        let result = Gguf::open(&dir.join(file));
        match &result {
            Ok(gguf) => assert_sound(gguf),
            Err(error) => {
                println!("{error}");
                let text = error.to_string();
                assert!(text.contains(file), "{text}");
                assert!(!text.contains(|c: char| c.is_control()) && text.len() < 500, "{text:?}");
                assert_eq!(error.class(), Class::Data, "{text}");
            }
        }
        // Files of these classes are well-formed GGUF. They fail only when the model, tokenizer or
        // template is used.
        let expect = if matches!(class, "model" | "vocab" | "template") { "accept" } else { expect };
        if (expect == "reject" && result.is_ok()) || (expect == "accept" && result.is_err()) {
            wrong.push(format!("{line}: {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_truncation_is_rejected_and_trailing_bytes_are_fine() {
    let bytes = good().finish();
    let data_end = read(bytes.clone()).unwrap().tensors().map(|t| t.offset() + t.bytes()).max().unwrap() as usize;
    for len in 0..bytes.len() {
        let result = read(bytes[..len].to_vec());
        assert_eq!(result.is_ok(), len >= data_end, "{len} bytes: {result:?}");
    }
    let longer = [bytes, vec![7; 1001]].concat();
    assert_sound(&read(longer).unwrap());
}

#[test]
fn mutated_gguf_never_panics_and_accepted_files_are_sound() {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    println!("seed {SEED:#x}");
    let mut random = Random::new(SEED);
    let mut next = move |below: usize| random.index(below);
    let bytes = good().finish();
    let header = read(bytes.clone()).unwrap().tensors().map(|t| t.offset()).min().unwrap() as usize;
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..60_000 {
        let mut bytes = bytes.clone();
        for _ in 0..=next(3) {
            match next(6) {
                0 => bytes[next(header)] = next(256) as u8,
                1 => bytes[next(header)] ^= 1 << next(8),
                2 => {
                    let value = [0, 1, 1 << 31, u64::MAX, 1 << 63, 1 << 61, (1 << 62) + 1][next(7)];
                    let at = next(header - 8);
                    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
                3 => bytes.truncate(header.max(next(bytes.len()))),
                4 => drop(bytes.splice(next(header)..header, [])),
                _ => {
                    let at = next(header);
                    bytes.insert(at, next(256) as u8);
                }
            }
            bytes.resize(bytes.len().max(header), 0);
        }
        match read(bytes) {
            Ok(gguf) => {
                accepted += 1;
                assert_sound(&gguf);
            }
            Err(error) => {
                rejected += 1;
                assert!(!error.to_string().contains(|c: char| c.is_control()), "{error}");
                assert_eq!(error.class(), Class::Data);
            }
        }
    }
    println!("{accepted} accepted, {rejected} rejected");
    assert!(accepted > 1000 && rejected > 1000);
}

#[test]
fn gguf_errors_name_problem_place_and_expectation() {
    assert_eq!(
        message(GgufWriter::new().alignment(24)),
        "m.gguf: byte 0x31: key \"general.alignment\": alignment is 24; must be a power of two from 8 to 65536"
    );
    assert_eq!(
        message(GgufWriter::new().zero_tensor("t", TensorType::from_id(12).unwrap(), &[256]).tensor(
            "u",
            12,
            &[100],
            vec![]
        )),
        "m.gguf: byte 0x42: tensor \"u\": rows of 100 elements are not a multiple of the Q4_K block of 256 elements"
    );
    assert_eq!(message(GgufWriter::new().version(1)), "m.gguf: byte 0x4: is version 1; versions 2 and 3 are supported");
    assert!(message(GgufWriter::new().version(3 << 24)).contains("big-endian"));
    assert!(message(GgufWriter::new().tensor("t", 137, &[1], vec![0; 4])).contains("ik_llama.cpp"));
    assert!(message(GgufWriter::new().key("k", 1u8).key("k", 1u8)).contains("appears twice, first at byte 0x18"));
    // The element type is changed to 9, which is the type of arrays.
    let mut nested = GgufWriter::new().key("k", vec![1u32]).finish();
    let at = nested.windows(4).rposition(|word| word == 4u32.to_le_bytes()).unwrap();
    nested[at..at + 4].copy_from_slice(&9u32.to_le_bytes());
    let text = read(nested).unwrap_err().to_string();
    assert!(
        text.ends_with("key \"k\": the value is an array of arrays; expected an array of numbers, bools or strings"),
        "{text}"
    );
    let keys = (0..65_537).fold(GgufWriter::new(), |writer, i| writer.key(&format!("k{i}"), true));
    let text = message(keys);
    assert!(text.contains("65537 keys"), "{text}");
}

/// Tests that the error of an incomplete download states both sizes, and that the error of a
/// damaged header states the position.
#[test]
fn truncated_file_error_states_the_missing_size() {
    let whole = good().finish();
    let data = read(whole.clone()).unwrap().tensors().map(|tensor| tensor.offset()).min().unwrap() as usize;
    let needed = read(whole.clone()).unwrap().tensors().map(|tensor| tensor.offset() + tensor.bytes()).max().unwrap();
    for bytes in [data, data + 1, needed as usize - 1] {
        let text = read(whole[..bytes].to_vec()).unwrap_err().to_string();
        assert_eq!(text, format!("m.gguf: is cut short: {bytes} B of {needed} B; download or copy it again"));
    }
    let text = read(whole[..40].to_vec()).unwrap_err().to_string();
    assert!(text.contains("fit into the remaining bytes of the file"), "{text}");
    // If tensors do not follow each other, the header counts as damaged, whatever size it requires.
    let mut damaged = whole;
    let name = damaged.windows(5).position(|word| word == b"three").unwrap();
    // After the name come the number of dimensions, four dimensions, the type and the offset.
    damaged[name + 5 + 4 + 4 * 8 + 4..][..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let text = read(damaged).unwrap_err().to_string();
    assert!(text.contains("ends after the file's data section"), "{text}");
}

#[test]
fn non_model_error_quotes_the_first_bytes() {
    for (bytes, begins) in [
        (&b"root:x:0:0:root:/root:/bin/bash\n"[..], "it starts with \"root:x:0\""),
        (b"hi", "it starts with \"hi\""),
        (b"\x1b[2J", "it starts with \"\\x1b[2J\""),
        (b"", "it is empty"),
    ] {
        let text = read(bytes.to_vec()).unwrap_err().to_string();
        assert_eq!(text, format!("m.gguf: is not a GGUF file, a plan or the folder of a model ({begins})"));
    }
}

#[test]
fn types_without_a_format_can_be_inspected_but_not_used() {
    let gguf =
        read(GgufWriter::new().tensor("d", 28, &[2], vec![0; 16]).tensor("i", 15, &[256], vec![0; 292]).finish())
            .unwrap();
    assert_sound(&gguf);
    let error = gguf.require_format(gguf.tensor("d").unwrap()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("m.gguf: tensor \"d\" has type F64, which is not supported; supported types are F32, "),
        "{text}"
    );
    assert_eq!(error.class(), Class::Data);
    assert!(gguf.require_format(gguf.tensor("i").unwrap()).unwrap_err().to_string().contains("Q8_K"));
}

#[test]
fn missing_files_have_another_class_than_bad_ones() {
    let dir = std::env::temp_dir();
    assert_eq!(Gguf::open(&dir).unwrap_err().class(), Class::NoInput);
    let error = Gguf::open(&dir.join("no such model.gguf")).unwrap_err();
    assert_eq!(error.class(), Class::NoInput);
    assert!(error.to_string().contains("no such model.gguf: cannot open"), "{error}");
}

/// Folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ixc-gguf-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, writer: &GgufWriter) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, writer.finish()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn shard(number: u32, count: u32, tensor: &str) -> GgufWriter {
    let writer = GgufWriter::new().key("split.no", number).key("split.count", count).key("split.tensors.count", 3i32);
    let writer = if number == 0 { writer.key("general.architecture", "llama") } else { writer };
    writer.f32_tensor(tensor, &[2], &[number as f32, 1.0])
}

#[test]
fn any_shard_opens_all() {
    let dir = Folder::new("shards");
    let paths: Vec<_> =
        (0..3).map(|i| dir.write(&format!("m-0000{}-of-00003.gguf", i + 1), &shard(i, 3, &format!("t{i}")))).collect();
    for path in &paths {
        let gguf = Gguf::open(path).unwrap();
        assert_sound(&gguf);
        assert_eq!((gguf.files().len(), gguf.tensors().len()), (3, 3));
        assert_eq!(gguf.metadata().read::<&str>("general.architecture").unwrap(), "llama");
        let last = gguf.tensor("t2").unwrap();
        assert_eq!((last.file(), &gguf.tensor_data(last)[..4]), (2, &2f32.to_le_bytes()[..]));
        let identity = gguf.files()[2].identity();
        assert_eq!((&identity.path, identity.bytes), (&paths[2], fs::metadata(&paths[2]).unwrap().len()));
        assert!(identity.modified.is_some());
    }
    // Two shards have the same tensor here.
    dir.write("m-00002-of-00003.gguf", &shard(1, 3, "t0"));
    assert!(Gguf::open(&paths[0]).unwrap_err().to_string().contains("\"t0\": appears twice"));
    // The second shard lacks its tensor here.
    dir.write("m-00002-of-00003.gguf", &GgufWriter::new().key("split.no", 1u32).key("split.count", 3u32));
    let text = Gguf::open(&paths[0]).unwrap_err().to_string();
    assert!(text.contains("number of tensors in all shards is 2; expected 3 for this file of a split model"), "{text}");
    // The last shard states another total number of tensors than the others here.
    dir.write("m-00002-of-00003.gguf", &shard(1, 3, "t1"));
    let writer = GgufWriter::new().key("split.no", 2u32).key("split.count", 3u32).key("split.tensors.count", 7i32);
    dir.write("m-00003-of-00003.gguf", &writer.f32_tensor("t2", &[2], &[2.0, 1.0]));
    let text = Gguf::open(&paths[0]).unwrap_err().to_string();
    assert!(
        text.contains("m-00003-of-00003.gguf") && text.contains("expected 7 for this file of a split model"),
        "{text}"
    );
    dir.write("m-00003-of-00003.gguf", &shard(2, 3, "t2"));
    // The second shard belongs to another model here.
    dir.write("m-00002-of-00003.gguf", &shard(1, 3, "t1").key("general.architecture", "gpt2"));
    let text = Gguf::open(&paths[0]).unwrap_err().to_string();
    assert!(text.contains("general.architecture is gpt2; expected llama for this file of a split model"), "{text}");
    // The second shard states the position of the third here.
    dir.write("m-00002-of-00003.gguf", &shard(2, 3, "t1"));
    assert!(Gguf::open(&paths[0]).unwrap_err().to_string().contains("split.no is 2"));
    // The second shard is missing here.
    fs::remove_file(&paths[1]).unwrap();
    let error = Gguf::open(&paths[2]).unwrap_err();
    assert!(
        error.to_string().contains("shard 2 of 3 is missing") && error.to_string().contains("m-00002-of-00003.gguf")
    );
    assert_eq!(error.class(), Class::NoInput);
    // A shard has another file name here.
    let renamed = dir.write("other.gguf", &shard(0, 3, "t0"));
    assert!(Gguf::open(&renamed).unwrap_err().to_string().contains("-00001-of-00003.gguf"));
}

#[cfg(target_os = "linux")]
#[test]
fn cut_file_reads_as_zeros_and_is_an_error() {
    let folder = Folder::new("cut");
    let path = folder.write("model.gguf", &good().f32_tensor("large", &[1 << 16], &vec![1.0; 1 << 16]));
    let gguf = Gguf::open(&path).unwrap();
    let large = gguf.tensor("large").unwrap();
    assert!(gguf.check_readable().is_ok());
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(gguf.tensor_data(large).last(), Some(&0));
    // The first page of the tensor is still in the file, but the guard replaces the whole mapping
    // by zeros.
    assert!(gguf.tensor_data(large).iter().all(|byte| *byte == 0));
    let error = gguf.check_readable().unwrap_err();
    assert!(error.to_string().contains("cut short"), "{error}");
    assert_eq!(error.class(), Class::Io);
}
