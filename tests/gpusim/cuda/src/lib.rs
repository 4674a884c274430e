//! A simulated CUDA driver: as a cdylib it is `libcuda.so.1` over the machine of `GPUSIM_STATE`,
//! with its bytes counted per process in `<state>.cuda`. The limiter is tested against it, so it
//! shares no code with the limiter; nothing links it, every client loads it by path like the real
//! one.

mod arena;
mod array;
mod attributes;
mod blocks;
mod calls;
mod capture;
mod codes;
mod context;
mod driver;
mod exports;
mod ffi;
mod forked;
mod graph;
mod heap;
mod image;
mod injection;
mod mps;
mod objects;
mod pools;
mod residency;
mod streams;
mod timeline;
mod times;
mod types;
mod vmm;
mod wait;
