//! A simulated CUDA driver: as a cdylib it is `libcuda.so.1` over the machine of `GPUSIM_STATE`,
//! with its bytes counted per process in `<state>.cuda`. It judges the product's limiter and must
//! share no code with it; no test links it, everybody loads it by path as the real one.

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
mod faults;
mod ffi;
mod forked;
mod graph;
mod heap;
mod image;
mod lent;
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
