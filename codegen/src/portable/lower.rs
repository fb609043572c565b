//! Lowering of statements: loops with carried values, index loads, addresses.
//!
//! A loop becomes three blocks: header, body and exit. The header's parameters are the loop
//! variable and the chunks of the carried values; the body jumps back to the header. Kernel IR is
//! structured, so the header dominates everything after the loop. The header's parameters are
//! therefore also the loop's results.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, SourceLoc, Value, types};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::FunctionBuilder;
use ixc_ir::format::grids::{BYTE_TABLES, TABLES};
use ixc_ir::kernel::{Address, Affine, Atom, For, Kernel, Stmt, ValueId, VarId};

use super::chunk_types::{Chunks, chunk_count, chunk_type};
use super::{Features, PortableError};

/// Maximum offset that an instruction contains. Adding the offset of a chunk to it does not
/// overflow.
const MAX_INSTRUCTION_OFFSET: i64 = 1 << 30;

/// The state of one kernel's lowering.
pub(super) struct Lowering<'a> {
    pub(super) b: FunctionBuilder<'a>,
    pub(super) kernel: &'a Kernel,
    pub(super) features: Features,
    buffers: Vec<Value>,
    dims: Vec<Value>,
    vars: Vec<Option<Value>>,
    values: Vec<Chunks>,
    /// Number of statements lowered so far, in the order of the kernel's text.
    statement: u32,
    /// Address of each 32-bit lookup table that the kernel uses.
    pub(super) tables: [Option<Value>; TABLES.len()],
    /// Address of each byte table that the kernel uses.
    pub(super) byte_tables: [Option<Value>; BYTE_TABLES.len()],
}

impl<'a> Lowering<'a> {
    pub(super) fn new(b: FunctionBuilder<'a>, kernel: &'a Kernel, features: Features) -> Lowering<'a> {
        Lowering {
            b,
            kernel,
            features,
            buffers: Vec::new(),
            dims: Vec::new(),
            vars: vec![None; kernel.vars.len()],
            values: vec![Chunks::new(); kernel.values.len()],
            statement: 0,
            tables: [None; TABLES.len()],
            byte_tables: [None; BYTE_TABLES.len()],
        }
    }

    /// Lowers the whole kernel.
    pub(super) fn finish(mut self, frontend: TargetFrontendConfig) -> Result<(), PortableError> {
        let entry = self.b.create_block();
        self.b.append_block_params_for_function_params(entry);
        self.b.switch_to_block(entry);
        let (buffers, dims) = (self.b.block_params(entry)[0], self.b.block_params(entry)[1]);
        self.buffers = self.parameters(buffers, self.kernel.buffers.len());
        self.dims = self.parameters(dims, self.kernel.dims.len());
        self.copy_tables(&self.kernel.body);
        self.statements(&self.kernel.body)?;
        self.b.set_srcloc(SourceLoc::default());
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
        self.b.finalize(frontend);
        Ok(())
    }

    fn parameters(&mut self, array: Value, count: usize) -> Vec<Value> {
        // The arrays of buffers and dims belong to the caller, are aligned, and are never written
        // by a kernel.
        let flags = MemFlagsData::trusted().with_readonly();
        (0..count).map(|i| self.b.ins().load(types::I64, flags, array, i as i32 * 8)).collect()
    }

    pub(super) fn malformed_error(&self, op: &'static str, expected: &'static str) -> PortableError {
        PortableError::Malformed { kernel: self.kernel.name.clone(), op, expected }
    }

    /// Returns the chunks of a value.
    pub(super) fn chunks(&self, value: ValueId) -> Result<Chunks, PortableError> {
        match self.values.get(value.index()) {
            Some(chunks) if !chunks.is_empty() => Ok(chunks.clone()),
            _ => Err(self.malformed_error("operand", "a definition before its use")),
        }
    }

    fn define(&mut self, value: ValueId, chunks: Chunks) -> Result<(), PortableError> {
        match self.values.get_mut(value.index()) {
            Some(slot) => *slot = chunks,
            None => return Err(self.malformed_error("result", "an entry in the table of values")),
        }
        Ok(())
    }

    fn define_var(&mut self, var: VarId, value: Value) -> Result<(), PortableError> {
        match self.vars.get_mut(var.index()) {
            Some(slot) => *slot = Some(value),
            None => return Err(self.malformed_error("variable", "an entry in the table of variables")),
        }
        Ok(())
    }

    fn statements(&mut self, statements: &[Stmt]) -> Result<(), PortableError> {
        for statement in statements {
            let own = SourceLoc::new(self.statement);
            self.statement += 1;
            self.b.set_srcloc(own);
            match statement {
                Stmt::Inst(inst) => {
                    let chunks = self.inst(inst)?;
                    if let Some(result) = inst.result {
                        self.define(result, chunks)?;
                    }
                }
                Stmt::For(looped) => self.counted_loop(looped, own)?,
                Stmt::LoadIndex { var, address } => {
                    let (base, offset) = self.address(address)?;
                    let flags = MemFlagsData::new().with_notrap();
                    let index = self.b.ins().load(types::I32, flags, base, offset);
                    let index = self.b.ins().uextend(types::I64, index);
                    self.define_var(*var, index)?;
                }
            }
        }
        Ok(())
    }

    fn counted_loop(&mut self, looped: &For, own: SourceLoc) -> Result<(), PortableError> {
        let (header, body, exit) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let trip = self.affine(&looped.trip)?;
        let zero = self.b.ins().iconst(types::I64, 0);
        let mut args = vec![BlockArg::from(zero)];
        let index = self.b.append_block_param(header, types::I64);
        for carry in &looped.carries {
            args.extend(self.chunks(carry.init)?.into_iter().map(BlockArg::from));
            let ty = self.kernel.ty(carry.init);
            let params: Chunks =
                (0..chunk_count(ty)).map(|_| self.b.append_block_param(header, chunk_type(ty.elem))).collect();
            self.define(carry.inner, params.clone())?;
            self.define(carry.result, params)?;
        }
        self.define_var(looped.var, index)?;
        self.b.ins().jump(header, &args);

        self.b.switch_to_block(header);
        let more = self.b.ins().icmp(IntCC::SignedLessThan, index, trip);
        self.b.ins().brif(more, body, &[], exit, &[]);

        self.b.switch_to_block(body);
        self.statements(&looped.body)?;
        self.b.set_srcloc(own);
        let one = self.b.ins().iconst(types::I64, 1);
        let next = self.b.ins().iadd(index, one);
        let mut args = vec![BlockArg::from(next)];
        for carry in &looped.carries {
            args.extend(self.chunks(carry.next)?.into_iter().map(BlockArg::from));
        }
        self.b.ins().jump(header, &args);

        self.b.switch_to_block(exit);
        Ok(())
    }

    /// Adds the terms of an affine expression to `sum`, without the constant. Terms are added in
    /// order: dims first, then variables of outer loops, then of inner loops. Cranelift can then
    /// hoist the longest possible prefix of the additions.
    fn terms(&mut self, mut sum: Option<Value>, affine: &Affine) -> Result<Option<Value>, PortableError> {
        for &(atom, coefficient) in &affine.terms {
            let atom = match atom {
                Atom::Dim(dim) => self.dims.get(dim.index()).copied(),
                Atom::Var(var) => self.vars.get(var.index()).copied().flatten(),
            };
            let Some(mut term) = atom else {
                return Err(self.malformed_error("affine expression", "a definition of one of its atoms"));
            };
            if coefficient != 1 {
                let coefficient = self.b.ins().iconst(types::I64, coefficient);
                term = self.b.ins().imul(term, coefficient);
            }
            sum = Some(match sum {
                Some(sum) => self.b.ins().iadd(sum, term),
                None => term,
            });
        }
        Ok(sum)
    }

    /// Computes an affine expression as a 64-bit integer.
    pub(super) fn affine(&mut self, affine: &Affine) -> Result<Value, PortableError> {
        let sum = self.terms(None, affine)?;
        Ok(match sum {
            Some(sum) if affine.constant == 0 => sum,
            Some(sum) => {
                let constant = self.b.ins().iconst(types::I64, affine.constant);
                self.b.ins().iadd(sum, constant)
            }
            None => self.b.ins().iconst(types::I64, affine.constant),
        })
    }

    /// Computes an address. Returns a base, and an offset that the instruction adds to it.
    pub(super) fn address(&mut self, address: &Address) -> Result<(Value, i32), PortableError> {
        let Some(&buffer) = self.buffers.get(address.buffer.index()) else {
            return Err(self.malformed_error("address", "an entry in the table of buffers"));
        };
        let base = self.terms(Some(buffer), &address.offset)?.unwrap_or(buffer);
        let constant = address.offset.constant;
        if constant.abs() <= MAX_INSTRUCTION_OFFSET {
            return Ok((base, constant as i32));
        }
        let constant = self.b.ins().iconst(types::I64, constant);
        Ok((self.b.ins().iadd(base, constant), 0))
    }
}
