//! `descriptors`: open file descriptors of each process.

use anyhow::Result;

use super::{Input, Source, SourceSpec, TickContext};
use crate::{
    columns,
    schema::{Batch, ProcessKey, TableBuilder, TypedTable},
};

columns! {
    /// Descriptors of a process.
    pub struct DescriptorRow {
        open: Option<u32> = Gauge("1", "Open file descriptors"),
    }
}

static TABLE: TypedTable<ProcessKey, DescriptorRow> = TypedTable::new(
    "descriptors",
    "One row per sample and process of the target",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "descriptors",
    help: "open file descriptors of each process",
    tables: &[TABLE.untyped()],
    input: Input::Tasks { procfs: true },
    open: |_| Ok(Box::new(Descriptors(TableBuilder::new(&TABLE)))),
    ..SourceSpec::DEFAULT
};

struct Descriptors(TableBuilder<ProcessKey, DescriptorRow>);

impl Source for Descriptors {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        for row in &ctx.tasks.rows {
            let key = ctx.key_of_task(row);
            self.0.push(key, DescriptorRow { open: row.fds });
        }
        self.0.finish(out);
        Ok(())
    }
}
