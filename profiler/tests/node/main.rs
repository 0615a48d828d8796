//! The sources that read the node: on fixture machines and on the machine at hand.

mod damage;
mod devices;
mod energy;
mod fabric;
mod facts;
mod filesystem;
mod gpu_drm;
mod gpu_nvidia;
mod this_machine;
mod ticks;
