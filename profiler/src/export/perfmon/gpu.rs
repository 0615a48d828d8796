//! `nv_gpu_metrics`: each GPU as a host `gpu-INDEX.HOST`.

use super::{
    Export,
    keys::{Kind, OF_GPU, find},
    samples::Block,
};
use crate::{
    analysis::perfmon::OF_GPUS,
    export::series::{Column, groups},
};

const BY_INDEX: &[&str] = &["index"];

/// A block for each GPU.
pub fn blocks(export: &mut Export<'_>) -> Vec<Block> {
    let run = export.run;
    let presence = find(OF_GPUS, "readings");
    let mut blocks = Vec::new();
    for (number, host) in run.hosts.iter().enumerate() {
        for index in groups(run, host, &presence, BY_INDEX, &mut export.failures) {
            let of = |name: &str| Column::of_group(find(OF_GPUS, name), BY_INDEX, &index);
            let name = format!("gpu-{index}.{}", host.name);
            let mut block = Block::new(number, name, of("readings"));
            for (path, header, name, kind) in OF_GPU {
                let quantity = block.add(path, header, kind, of(name));
                if kind == Kind::Rate {
                    quantity.factor = 1e-3;
                }
            }
            blocks.push(block);
        }
    }
    blocks
}
