//! Tests of matrices of four-bit codes (bitsandbytes), with their JSON and their other tensors.

use ixc_ir::derived::Element;
use serde_json::{Value as Json, json};

use crate::{fill, mimo_2};

const MATRIX: &str = "model.layers.0.self_attn.q_proj.weight";
/// Rows and columns of the matrix. The next constant is the number of its blocks of 64 numbers.
const SHAPE: [u64; 2] = [128, 32];
const BLOCKS: u64 = 64;

/// Content of the only quantised matrix of a folder.
#[derive(Clone)]
struct Coded {
    codes: (&'static str, Vec<u64>),
    absmax: (&'static str, u64),
    nested: Option<u64>,
    state: Json,
    kind: &'static str,
    numbers: Vec<f32>,
    scale: f32,
    without: &'static str,
}

impl Coded {
    fn new(nested: bool) -> Coded {
        let mut state = json!({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": SHAPE});
        if nested {
            state["nested_blocksize"] = 32.into();
            state["nested_offset"] = 0.25.into();
        }
        Coded {
            codes: ("U8", vec![2048, 1]),
            absmax: (if nested { "U8" } else { "F32" }, BLOCKS),
            nested: nested.then_some(2),
            state,
            kind: "nf4",
            numbers: Element::Nf4.codebook().unwrap().to_vec(),
            scale: 0.5,
            without: "none",
        }
    }

    /// Returns the type of the derived matrix, or the error.
    fn read(&self, test: &str) -> Result<String, String> {
        let text =
            if self.state.is_string() { self.state.as_str().unwrap().to_owned() } else { self.state.to_string() };
        let names =
            ["", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"].map(|end| format!("{MATRIX}{end}"));
        let [codes, absmax, map, nested, nested_map] = names.each_ref().map(String::as_str);
        let state = format!("{MATRIX}.quant_state.bitsandbytes__{}", self.kind);
        let (blocks, count, length) = ([self.absmax.1], [self.numbers.len() as u64], [text.len() as u64]);
        let few = [self.nested.unwrap_or(0)];
        let mut tensors = vec![
            (codes, self.codes.0, &self.codes.1[..]),
            (absmax, self.absmax.0, &blocks),
            (map, "F32", &count),
            (&state, "U8", &length),
        ];
        if self.nested.is_some() {
            tensors.extend([(nested, "F32", &few[..]), (nested_map, "F32", &[256])]);
        }
        tensors.retain(|(name, ..)| !name.ends_with(self.without));
        let said = json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"});
        let at = mimo_2(&format!("codes-{test}"), &said, &tensors);
        let singles = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let has = |name: &str| tensors.iter().any(|(known, ..)| *known == name);
        for (name, bytes) in [
            (state.as_str(), text.into_bytes()),
            (map, singles(&self.numbers)),
            if self.nested.is_some() {
                (nested, singles(&vec![self.scale; few[0] as usize]))
            } else {
                (absmax, singles(&vec![self.scale; blocks[0] as usize]))
            },
        ] {
            if has(name) && (name != absmax || self.absmax.0 == "F32") {
                fill(&at, name, &bytes);
            }
        }
        ixc_architectures::open(&at)
            .map(|model| model.tensor("blk.0.attn_q.weight").unwrap().tensor_type().to_string())
            .map_err(|error| error.to_string())
    }
}

#[test]
fn codebook_weights_become_their_original_type() {
    for (dtype, right) in [("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F32")] {
        for nested in [false, true] {
            let mut coded = Coded::new(nested);
            coded.state["dtype"] = dtype.into();
            assert_eq!(coded.read(&format!("{dtype}-{nested}")).as_deref(), Ok(right));
        }
    }
    // Codes may be stored in two-byte elements, which FSDP requires.
    let stored = Coded { codes: ("BF16", vec![1024, 1]), ..Coded::new(true) };
    assert_eq!(stored.read("stored").as_deref(), Ok("BF16"));
    let mut fp4 = Coded { kind: "fp4", ..Coded::new(false) };
    fp4.state["quant_type"] = "fp4".into();
    let sizes = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    fp4.numbers = sizes.iter().map(|x| x / 12.0).chain(sizes.iter().map(|x| -x / 12.0)).collect();
    assert_eq!(fp4.read("fp4").as_deref(), Ok("BF16"));
}

#[test]
fn inconsistent_codebook_tensors_are_refused() {
    type Change = fn(&mut Coded);
    let cases: &[(&str, bool, Change, &str)] = &[
        ("alone", false, |of| of.without = "__nf4", "a matrix of bitsandbytes codes without a quantisation state"),
        ("absmax", false, |of| of.without = ".absmax", "q_proj.weight.absmax\" is missing"),
        ("map", false, |of| of.without = ".quant_map", "q_proj.weight.quant_map\" is missing"),
        ("nested", true, |of| of.without = ".nested_absmax", "q_proj.weight.nested_absmax\" is missing"),
        ("nested-map", true, |of| of.without = ".nested_quant_map", "nested_quant_map\" is missing"),
        ("few", false, |of| of.absmax.1 = 63, "64 numbers of F32"),
        ("few-codes", true, |of| of.absmax.1 = 63, "64 scales as F32 or as codes of U8, one for each block"),
        ("half", false, |of| of.absmax.0 = "F16", "64 scales as F32 or as codes of U8, one for each block"),
        ("few-nested", true, |of| of.nested = Some(1), "2 numbers of F32"),
        ("numbers", false, |of| of.numbers[3] = 0.0, "0 for code 3; expected -0.3949175 of nf4"),
        ("count", false, |of| of.numbers.truncate(15), "16 numbers of F32"),
        ("nan", false, |of| of.scale = f32::NAN, "NaN at 0; expected finite numbers"),
        ("inf", false, |of| of.scale = f32::INFINITY, "inf at 0; expected finite numbers"),
        ("nested-nan", true, |of| of.scale = f32::NAN, "NaN at 0; expected finite numbers"),
        ("kind", false, |of| of.state["quant_type"] = "fp4".into(), "\"nf4\", as in the name"),
        ("dtype", false, |of| of.state["dtype"] = "int8".into(), "dtype float16, bfloat16 or float32"),
        ("shape", false, |of| of.state["shape"] = json!([128, 33]), "the shape of a matrix of 4096 codes"),
        (
            "vector",
            false,
            |of| of.state["shape"] = json!([4096]),
            "whose shape has 1 dimensions; expected the dimensions rows and columns",
        ),
        (
            "many",
            false,
            |of| of.state["shape"] = json!(vec![1; 4096]),
            "whose shape has 4096 dimensions; expected the dimensions rows",
        ),
        ("nothing", false, |of| of.state["shape"] = json!([0, 4096]), "the shape of a matrix of 4096 codes"),
        ("huge", false, |of| of.state["shape"] = json!([u64::MAX, u64::MAX]), "the shape of a matrix of 4096 codes"),
        ("turned", false, |of| of.state["shape"] = json!([-1, 4096]), "malformed"),
        ("block", false, |of| of.state["blocksize"] = 0.into(), "a blocksize of 1 or more numbers for each scale"),
        ("blocks", false, |of| of.state["blocksize"] = 32.into(), "128 numbers of F32"),
        ("nested-block", true, |of| of.state["nested_blocksize"] = 0.into(), "a count and a finite number"),
        ("nested-offset", true, |of| of.state["nested_offset"] = Json::Null, "a count and a finite number"),
        ("no-json", false, |of| of.state = "{".into(), "malformed (EOF"),
        ("no-number", true, |of| of.state = r#"{"blocksize": 64, "nested_offset": NaN}"#.into(), "malformed"),
        ("no-object", false, |of| of.state = "[1, 2]".into(), "malformed"),
        ("no-block", false, |of| of.state = r#"{"dtype": "bfloat16"}"#.into(), "missing field `blocksize`"),
    ];
    for (test, nested, change, says) in cases {
        let mut coded = Coded::new(*nested);
        change(&mut coded);
        let said = coded.read(test).unwrap_err();
        assert!(said.contains(says), "{test}: {said}");
    }
}

/// Tests that weights without quantisation need no other tensors, and that other quantisation
/// methods are refused.
#[test]
fn unquantised_weights_are_read_unchanged() {
    let said = json!({"load_in_4bit": true, "llm_int8_skip_modules": ["q_proj"]});
    let model = ixc_architectures::open(&mimo_2("codes-skipped", &said, &[(MATRIX, "BF16", &SHAPE)])).unwrap();
    assert_eq!(model.tensor("blk.0.attn_q.weight").unwrap().tensor_type().to_string(), "BF16");
}
