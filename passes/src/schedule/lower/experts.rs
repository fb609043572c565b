//! Routing, the rows sorted by their experts, and the sum of the experts' results.
//!
//! ```text
//! route %logits                       ids and weights of each token's slots
//! route.identities %ids, %p            ids of experts that have matrices, and nobody's
//! expert.split %ids, %p {now = 4}     nothing: what reads one of the parts reads some slots of each row
//! expert.down %y, %ids, %p, @down     bucket (ids sorted by expert), gather, linear, combine
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::Op;
use ixc_ir::graph::attrs::{RouteAttrs, RouteScore};
use ixc_ir::plan::{Arg, BucketId, DimInput, Input, Source, Step};
use ixc_kernels::generator::signature::NamedValue;
use ixc_kernels::{AddBias, Bits, Combine, ExpertGroups, Gather, Route, RouteIdentities, ScaleBy, Score};

use super::{ArenaRows, Binding, INDEX_BYTES, Lowering, Rows, ScheduleError, Slots};
use super::{Resource, Work, WorkItem, bind, by_row, fit, row_bytes, scratch_arg, unsupported_error, whole};

/// Bytes of an expert's scale factor, an f32.
const FLOAT_BYTES: u64 = 4;

impl Lowering<'_> {
    pub(super) fn route(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let logits = self.operand(op, "logits")?;
        let route = RouteAttrs::from_op(op);
        let ids = self.buffer("route ids", logits.rows, Format::F32, route.top_k)?;
        let p = self.buffer("route weights", logits.rows, Format::F32, route.top_k)?;
        let (bias, scales) = (self.opt_weight(op, "bias"), self.opt_weight(op, "scales"));
        let mut args = vec![
            bind("logits", by_row(Source::Arena(logits.buffer), logits.row_bytes()?)),
            bind("ids", by_row(Source::Arena(ids.buffer), ids.row_bytes()?)),
            bind("p", by_row(Source::Arena(p.buffer), p.row_bytes()?)),
            bind("scores", scratch_arg()),
        ];
        for (name, weight) in [("bias", bias), ("scales", scales)] {
            if let Some(weight) = weight {
                args.push(bind(name, whole(Source::Weight(self.vector(op.kind.row().mnemonic, weight)?))));
            }
        }
        let spec = Route {
            experts: fit("experts", logits.width)?,
            top_k: fit("experts of a token", route.top_k)?,
            score: score(route.score),
            groups: fit("groups of experts", route.groups)?,
            kept: fit("groups of experts", route.groups_kept)?,
            highest: route.group_best == 1,
            bias: bias.is_some(),
            scales: scales.is_some(),
            normalise: route.normalise,
            scale: Bits::from_value(route.scale),
            listed: 0,
        };
        self.by_rows(name.to_string(), logits.rows, 1, spec, &[], args)?;
        self.routes.insert(ids.buffer, logits.width);
        self.meanings[op.results[1].index()] = Some(Binding::ArenaRows(p));
        Ok(Binding::ArenaRows(ids))
    }

    /// Reads the experts of each token from a table, by the token's id.
    pub(super) fn route_listed(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let logits = self.operand(op, "logits")?;
        let (Binding::Ids, Rows::Tokens) = (self.meaning(name, self.value_operand(op, "ids")?)?, logits.rows) else {
            return unsupported_error(
                name,
                "token ids that are not the parameter `ids`; only the ids of the parameter are range-checked",
            );
        };
        let table = self.weight_operand(op, "table");
        let &[rows, top_k] = &self.module.weights[table.index()].shape[..] else {
            return unsupported_error(name, "a table that is not a matrix");
        };
        let ids = self.buffer("route ids", logits.rows, Format::F32, top_k)?;
        let p = self.buffer("route weights", logits.rows, Format::F32, top_k)?;
        let args = vec![
            bind("logits", by_row(Source::Arena(logits.buffer), logits.row_bytes()?)),
            bind("id", by_row(Source::Input(Input::Tokens), INDEX_BYTES)),
            bind("table", whole(Source::Weight(self.vector(name, table)?))),
            bind("ids", by_row(Source::Arena(ids.buffer), ids.row_bytes()?)),
            bind("p", by_row(Source::Arena(p.buffer), p.row_bytes()?)),
            bind("scores", scratch_arg()),
        ];
        let word = op.attr("score").word();
        let spec = Route {
            experts: fit("experts", logits.width)?,
            top_k: fit("experts of a token", top_k)?,
            score: score(RouteScore::from_word(word).unwrap_or_else(|| unreachable!("score {word}"))),
            groups: 1,
            kept: 1,
            highest: false,
            bias: false,
            scales: false,
            normalise: op.attr("normalise").bool(),
            scale: Bits::from_value(op.attr("scale").float()),
            listed: fit("rows of a table", rows)?,
        };
        self.by_rows(self.label(op.kind, table), logits.rows, 1, spec, &[], args)?;
        self.routes.insert(ids.buffer, logits.width);
        self.meanings[op.results[1].index()] = Some(Binding::ArenaRows(p));
        Ok(Binding::ArenaRows(ids))
    }

    /// Removes identity experts from a route; their slots get no expert.
    pub(super) fn route_identities(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (name, experts) = (op.kind.row().mnemonic, op.attr("experts").int().unsigned_abs());
        let (ids, p) = (self.operand(op, "ids")?, self.operand(op, "p")?);
        if !self.routes.contains_key(&ids.buffer) {
            return unsupported_error(name, "expert ids that are not the result of a route");
        }
        if self.partial.contains(&ids.buffer) {
            let problem = "ids of some slots only, such as those of a rank's experts: its identity experts are unknown; \
                           expected the ids of a route";
            return unsupported_error(name, problem);
        }
        let [own, weights] = ["own ids", "own weights"].map(|what| self.buffer(what, ids.rows, Format::F32, ids.width));
        let (own, weights) = (own?, weights?);
        let passed = self.buffer("passed weights", ids.rows, Format::F32, 1)?;
        let row = |rows: &ArenaRows| Ok::<_, ScheduleError>(by_row(Source::Arena(rows.buffer), rows.row_bytes()?));
        let args = vec![
            bind("ids", row(&ids)?),
            bind("p", row(&p)?),
            bind("own", row(&own)?),
            bind("weights", row(&weights)?),
            bind("passed", row(&passed)?),
        ];
        let spec = RouteIdentities { n: fit("experts of a token", ids.width)?, experts: fit("experts", experts)? };
        self.by_rows(name.to_string(), ids.rows, 1, spec, &[], args)?;
        self.routes.insert(own.buffer, experts);
        self.partial.insert(own.buffer);
        self.meanings[op.results[1].index()] = Some(Binding::ArenaRows(weights));
        self.meanings[op.results[2].index()] = Some(Binding::ArenaRows(passed));
        Ok(Binding::ArenaRows(own))
    }

    /// Makes a routing to groups of experts from a routing to experts.
    pub(super) fn groups_of_experts(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (name, size) = (op.kind.row().mnemonic, op.attr("size").int().unsigned_abs());
        // A step fills routings in the order of their numbers. The experts' routing must be
        // numbered before the routing of groups that is made from it.
        let slots = self.slots(op, "ids")?;
        self.routing(name, slots)?;
        let ids = slots.of;
        let whole = slots.count == ids.width && !self.partial.contains(&ids.buffer);
        let Some(&experts) = self.routes.get(&ids.buffer).filter(|_| whole) else {
            return unsupported_error(name, "only some of the expert ids of a route");
        };
        let groups = self.buffer(name, ids.rows, Format::F32, ids.width)?;
        let args = vec![
            bind("ids", by_row(Source::Arena(ids.buffer), ids.row_bytes()?)),
            bind("groups", by_row(Source::Arena(groups.buffer), groups.row_bytes()?)),
        ];
        let spec = ExpertGroups { n: fit("experts of a token", ids.width)?, size: fit("experts of a group", size)? };
        self.by_rows(name.to_string(), ids.rows, 1, spec, &[], args)?;
        self.routes.insert(groups.buffer, experts.div_ceil(size));
        Ok(Binding::ArenaRows(groups))
    }

    pub(super) fn split(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (ids, p, now) = (self.slots(op, "ids")?, self.slots(op, "p")?, op.attr("now").int().unsigned_abs());
        let parts = |slots: Slots| {
            let first = Slots { count: now, ..slots };
            let others = Slots { first: slots.first + now, count: slots.count.saturating_sub(now), ..slots };
            [first, others].map(Binding::Chosen)
        };
        let ([ids, later], [p, later_p]) = (parts(ids), parts(p));
        for (result, meaning) in op.results.iter().zip([ids, p, later, later_p]) {
            self.meanings[result.index()] = Some(meaning);
        }
        Ok(ids)
    }

    /// Returns the rows of the routing of `ids`; adds its bucket on first use.
    pub(super) fn routing(&mut self, op: &'static str, ids: Slots) -> Result<Rows, ScheduleError> {
        if let Some(&rows) = self.routings.get(&ids) {
            return Ok(rows);
        }
        let Some(&experts) = self.routes.get(&ids.of.buffer) else {
            return unsupported_error(op, "expert ids that are not the result of a route");
        };
        if ids.of.rows != Rows::Tokens {
            return unsupported_error(op, "routing of rows other than tokens");
        }
        let (bucket, top_k) = (BucketId(self.buckets), fit("experts of a token", ids.count)?);
        self.buckets += 1;
        self.experts.push(experts);
        let (buffer, first) = (ids.of.buffer, fit("slot of a token", ids.first)?);
        let (experts, nobody) = (fit("experts", experts)?, self.partial.contains(&buffer));
        let step = Step::Bucket { bucket, ids: buffer, first, top_k, experts, nobody };
        self.tasks.work.push(Work {
            what: WorkItem::Bucket(step),
            reads: vec![Resource::Buffer(buffer.0)],
            writes: vec![Resource::Bucket(bucket.0)],
        });
        let rows = Rows::Routed { bucket, top_k };
        self.routings.insert(ids, rows);
        Ok(rows)
    }

    /// Returns the number of experts of a routing.
    pub(in crate::schedule) fn experts_of(&self, bucket: BucketId) -> Option<u64> {
        self.experts.get(bucket.0 as usize).copied()
    }

    /// Returns the rows `x` copied into the order of the op's routing. Further calls with the same
    /// rows and routing return the same copy.
    pub(super) fn routed_rows(&mut self, op: &Op, x: ArenaRows) -> Result<ArenaRows, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let ids = self.slots(op, "ids")?;
        let rows = self.routing(name, ids)?;
        let Rows::Routed { bucket, .. } = rows else { return unsupported_error(name, "rows that are not routed") };
        if x.rows == rows {
            return Ok(x);
        }
        if x.rows != Rows::Tokens {
            return unsupported_error(name, "rows that belong to another routing");
        }
        if let Some(&done) = self.gathered.get(&(x.buffer, bucket)) {
            return Ok(done);
        }
        let y = self.buffer("gather", rows, x.format, x.width)?;
        let row = x.row_bytes()?;
        let args = vec![
            bind("row", by_row(Source::Input(Input::RoutedToken(bucket)), INDEX_BYTES)),
            bind("x", whole(Source::Arena(x.buffer))),
            bind("y", by_row(Source::Arena(y.buffer), row)),
        ];
        let spec = Gather { bytes: fit("bytes of a row", row)? };
        self.by_rows(
            "gather".to_string(),
            rows,
            1,
            spec,
            &[NamedValue { name: "rows", value: DimInput::Tokens.into() }],
            args,
        )?;
        self.gathered.insert((x.buffer, bucket), y);
        Ok(y)
    }

    /// Adds its expert's bias to each routed row.
    pub(super) fn expert_add_bias(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (y, ids, bias) = (self.operand(op, "y")?, self.slots(op, "ids")?, self.weight_operand(op, "bias"));
        let Rows::Routed { bucket, .. } = self.routing(name, ids)? else {
            return unsupported_error(name, "expert ids that are not the result of a route");
        };
        let experts = self.module.weights[bias.index()].shape.first().copied();
        if y.rows != self.routing(name, ids)? || self.experts_of(bucket) != experts {
            return unsupported_error(name, "rows or biases that belong to another routing");
        }
        self.expect(name, &y, Format::F32, y.width)?;
        let out = self.buffer(name, y.rows, Format::F32, y.width)?;
        let row = out.row_bytes()?;
        let bias = Arg { expert_stride: row, ..whole(Source::Weight(self.vector(name, bias)?)) };
        let args = vec![
            bind("x", by_row(Source::Arena(y.buffer), row)),
            bind("bias", bias),
            bind("y", by_row(Source::Arena(out.buffer), row)),
        ];
        self.by_rows(name.to_string(), y.rows, 1, AddBias { n: fit("elements of a bias", y.width)? }, &[], args)?;
        Ok(Binding::ArenaRows(out))
    }

    /// Multiplies each routed row by its expert's factor.
    pub(super) fn expert_scale(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (y, ids, factors) = (self.operand(op, "y")?, self.slots(op, "ids")?, self.weight_operand(op, "s"));
        let Rows::Routed { bucket, .. } = self.routing(name, ids)? else {
            return unsupported_error(name, "expert ids that are not the result of a route");
        };
        let experts = self.module.weights[factors.index()].shape.first().copied();
        if y.rows != self.routing(name, ids)? || self.experts_of(bucket) != experts {
            return unsupported_error(name, "rows or factors that belong to another routing");
        }
        self.expect(name, &y, Format::F32, y.width)?;
        let out = self.buffer(name, y.rows, Format::F32, y.width)?;
        let row = out.row_bytes()?;
        let factor = Arg { expert_stride: FLOAT_BYTES, ..whole(Source::Weight(self.vector(name, factors)?)) };
        let args = vec![
            bind("x", by_row(Source::Arena(y.buffer), row)),
            bind("s", factor),
            bind("y", by_row(Source::Arena(out.buffer), row)),
        ];
        self.by_rows(name.to_string(), y.rows, 1, ScaleBy { n: fit("elements of a row", y.width)? }, &[], args)?;
        Ok(Binding::ArenaRows(out))
    }

    /// Sums the rows `y` over each token's slots.
    pub(super) fn combine(
        &mut self,
        op: &'static str,
        label: String,
        y: ArenaRows,
        p: Slots,
        residual: Option<ArenaRows>,
    ) -> Result<ArenaRows, ScheduleError> {
        let Rows::Routed { bucket, top_k } = y.rows else {
            return unsupported_error(op, "slots that are not routed");
        };
        if p.of.rows != Rows::Tokens || p.count != u64::from(top_k) {
            return unsupported_error(op, "weights that belong to other slots than the operand y");
        }
        if let Some(residual) = residual {
            self.expect(op, &residual, Format::F32, y.width)?;
            if residual.rows != Rows::Tokens {
                return unsupported_error(op, "a residual of rows other than tokens");
            }
        }
        let out = self.buffer(&label, Rows::Tokens, Format::F32, y.width)?;
        let row = out.row_bytes()?;
        let slots = u64::from(top_k) * INDEX_BYTES;
        let mut args = vec![
            bind("slot", by_row(Source::Input(Input::RoutedSlot(bucket)), slots)),
            bind(
                "p",
                Arg {
                    offset: row_bytes(Format::F32, p.first)?,
                    ..by_row(Source::Arena(p.of.buffer), p.of.row_bytes()?)
                },
            ),
            bind("x", whole(Source::Arena(y.buffer))),
        ];
        if let Some(residual) = residual {
            args.push(bind("residual", by_row(Source::Arena(residual.buffer), row)));
        }
        args.push(bind("y", by_row(Source::Arena(out.buffer), row)));
        let spec = Combine { n: fit("elements of a row", y.width)?, slots: top_k, residual: residual.is_some() };
        let dims = [NamedValue { name: "rows", value: DimInput::Tokens * top_k }];
        self.by_rows(label, out.rows, 1, spec, &dims, args)?;
        Ok(out)
    }
}

fn score(score: RouteScore) -> Score {
    match score {
        RouteScore::Softmax => Score::Softmax,
        RouteScore::Sigmoid => Score::Sigmoid,
        RouteScore::Chosen => Score::Chosen,
        RouteScore::RootSoftplus => Score::RootSoftplus,
        RouteScore::SparseMixer => Score::SparseMixer,
    }
}
