//! Sources of the node, on fixtures and on the present machine.

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
