//! Decodes beyond the catalogue: plans, a cache that owns its pages, captured steps, bad input.

mod cache;
mod capture;
mod invalid;
mod plan;
