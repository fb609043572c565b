//! Small writer of GGUF files for tests and tools. The reader accepts its files.
//!
//! The writer accepts any input, also for files that a reader should refuse, such as a repeated key
//! or a tensor with a wrong length. A tensor may be a hole ([`GgufWriter::hole`]), whose bytes are
//! zeros. [`GgufWriter::write_to`] does not store the bytes of holes on the drive, so it can write
//! a model of any size.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use super::tensor_type::TensorType;
use super::value::{Array, Value};

/// Collector of keys and tensors, from which the bytes of a file are made.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    keys: Vec<(String, Value)>,
    tensors: Vec<WrittenTensor>,
}

#[derive(Clone, Debug)]
struct WrittenTensor {
    name: String,
    type_id: u32,
    dims: Vec<u64>,
    data: TensorData,
}

#[derive(Clone, Debug)]
enum TensorData {
    Bytes(Vec<u8>),
    /// Zeros that are not kept in memory; the number is their length in bytes.
    Hole(u64),
}

impl TensorData {
    fn len(&self) -> u64 {
        match self {
            TensorData::Bytes(bytes) => bytes.len() as u64,
            TensorData::Hole(bytes) => *bytes,
        }
    }
}

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter::new()
    }
}

impl GgufWriter {
    /// Returns a writer without keys and tensors, for version 3 and the default alignment.
    pub fn new() -> GgufWriter {
        GgufWriter { version: 3, alignment: 32, keys: Vec::new(), tensors: Vec::new() }
    }

    /// Sets the version.
    pub fn version(mut self, version: u32) -> GgufWriter {
        self.version = version;
        self
    }

    /// Sets the alignment, and adds its key.
    ///
    /// # Panics
    /// When the alignment is zero.
    pub fn alignment(mut self, alignment: u32) -> GgufWriter {
        assert_ne!(alignment, 0);
        self.alignment = alignment as usize;
        self.key("general.alignment", alignment)
    }

    /// Appends a key.
    pub fn key(mut self, key: &str, value: impl Into<Value>) -> GgufWriter {
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    /// Appends a tensor with the type id `type_id`. The first of its dimensions is the row length.
    pub fn tensor(self, name: &str, type_id: u32, dims: &[u64], data: Vec<u8>) -> GgufWriter {
        self.put(name, type_id, dims, TensorData::Bytes(data))
    }

    fn put(mut self, name: &str, type_id: u32, dims: &[u64], data: TensorData) -> GgufWriter {
        self.tensors.push(WrittenTensor { name: name.to_owned(), type_id, dims: dims.to_vec(), data });
        self
    }

    /// Appends an F32 tensor.
    pub fn f32_tensor(self, name: &str, dims: &[u64], data: &[f32]) -> GgufWriter {
        self.tensor(name, 0, dims, data.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// Appends a tensor of zeros, whose length follows from its type and dimensions.
    ///
    /// # Panics
    /// When no length follows from the type and the dimensions.
    pub fn zero_tensor(self, name: &str, tensor_type: TensorType, dims: &[u64]) -> GgufWriter {
        let bytes = tensor_bytes(tensor_type, dims);
        self.tensor(name, tensor_type.id, dims, vec![0; bytes as usize])
    }

    /// Appends a tensor whose bytes are a hole. Its length follows from its type and dimensions.
    ///
    /// # Panics
    /// When no length follows from the type and the dimensions.
    pub fn hole(self, name: &str, tensor_type: TensorType, dims: &[u64]) -> GgufWriter {
        self.put(name, tensor_type.id, dims, TensorData::Hole(tensor_bytes(tensor_type, dims)))
    }

    /// Returns the bytes of the file, including zeros for holes.
    pub fn finish(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            match &tensor.data {
                TensorData::Bytes(bytes) => out.extend(bytes),
                TensorData::Hole(bytes) => out.resize(out.len() + *bytes as usize, 0),
            }
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// Writes the same bytes as [`GgufWriter::finish`] to an empty file. Holes and padding are not
    /// written, so they become gaps of the file.
    ///
    /// # Errors
    /// When the file cannot be written, or cannot have this length.
    pub fn write_to(&self, file: &mut File) -> io::Result<()> {
        let header = self.header();
        file.write_all(&header)?;
        let mut end = header.len() as u64;
        for tensor in &self.tensors {
            let start = end.next_multiple_of(self.alignment as u64);
            end = start + tensor.data.len();
            if let TensorData::Bytes(bytes) = &tensor.data {
                file.seek(SeekFrom::Start(start))?;
                file.write_all(bytes)?;
            }
        }
        file.set_len(end.next_multiple_of(self.alignment as u64))
    }

    /// Writes the same bytes as [`GgufWriter::finish`] in order. For each hole, `fill` writes the
    /// bytes; it gets the index of the tensor.
    ///
    /// # Errors
    /// When `out` fails, or when `fill` fails or writes another number of bytes than the hole has.
    pub fn write_with(
        &self,
        out: &mut dyn Write,
        mut fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let header = self.header();
        out.write_all(&header)?;
        let mut end = header.len() as u64;
        let pad = |out: &mut dyn Write, end: u64| -> io::Result<u64> {
            let start = end.next_multiple_of(self.alignment as u64);
            io::copy(&mut io::repeat(0).take(start - end), out)?;
            Ok(start)
        };
        for (index, tensor) in self.tensors.iter().enumerate() {
            end = pad(out, end)? + tensor.data.len();
            match &tensor.data {
                TensorData::Bytes(bytes) => out.write_all(bytes)?,
                TensorData::Hole(bytes) => {
                    let mut counted = CountingWriter { out, written: 0 };
                    fill(index, &mut counted)?;
                    let written = counted.written;
                    if written != *bytes {
                        let problem = format!("{}: only {written} of {bytes} bytes were written", tensor.name);
                        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
                    }
                }
            }
        }
        pad(out, end).map(drop)
    }

    /// Returns the bytes of the header, the keys and the tensor table.
    fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_string(&mut out, key);
            out.extend(value.type_id().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(self.alignment as u64);
        }
        out
    }
}

/// Writer that counts the bytes written.
struct CountingWriter<'o> {
    out: &'o mut dyn Write,
    written: u64,
}

impl Write for CountingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn tensor_bytes(tensor_type: TensorType, dims: &[u64]) -> u64 {
    tensor_type.tensor_bytes(dims).unwrap_or_else(|| panic!("{dims:?} is not a shape of {tensor_type}"))
}

fn put_string(out: &mut Vec<u8>, string: &str) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => out.extend(x.to_le_bytes()),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::String(x) => put_string(out, x),
        Value::Array(x) => put_array(out, x),
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_type_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&x| u8::from(x))),
        Array::String(v) => v.iter().for_each(|x| put_string(out, x)),
        Array::U64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
    }
}
