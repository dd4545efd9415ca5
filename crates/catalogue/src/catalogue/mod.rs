//! The list of problems.

mod append;
mod attention;
mod backward;
mod decode;
mod instructions;
mod linear;
mod matrix;
mod models;
mod operands;
mod packed;
mod packed_heads;
mod pairs;
mod quantize;
mod rows;
mod varlen;

use flashcube::DType;

use crate::problem::{Memory, Problem, Task, Values};

/// Every problem, in a fixed order; names are unique.
pub fn problems() -> Vec<Problem> {
    let entries = [
        attention::sizes(),
        attention::memory(),
        attention::masks(),
        attention::logits(),
        attention::values(),
        attention::schedules(),
        matrix::entries(),
        varlen::entries(),
        packed_heads::entries(),
        pairs::entries(),
        backward::entries(),
        decode::entries(),
        append::entries(),
        rows::merge(),
        rows::hadamard(),
        packed::entries(),
        linear::entries(),
        operands::attend(),
        quantize::entries(),
        instructions::entries(),
        models::entries(),
    ];
    entries
        .into_iter()
        .flatten()
        .flat_map(Entry::expand)
        .collect()
}

/// The problem of that name.
pub fn problem(name: &str) -> Option<Problem> {
    problems().into_iter().find(|p| p.name == name)
}

/// A problem for one or several dtypes.
struct Entry {
    feature: &'static str,
    detail: String,
    task: Task,
    dtypes: Vec<DType>,
    values: Values,
    memory: Memory,
    core: bool,
}

impl Entry {
    fn new(feature: &'static str, detail: impl Into<String>, task: Task) -> Self {
        Self {
            feature,
            detail: detail.into(),
            task,
            dtypes: vec![DType::F32],
            values: Values::Normal,
            memory: Memory::Dense,
            core: true,
        }
    }

    fn values(self, values: Values) -> Self {
        Self { values, ..self }
    }

    fn memory(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    /// In f16 and bf16 as well.
    fn all_dtypes(self) -> Self {
        self.dtypes(&DType::ALL)
    }

    fn dtypes(self, dtypes: &[DType]) -> Self {
        Self {
            dtypes: dtypes.to_vec(),
            ..self
        }
    }

    /// Too long for the reduced set.
    fn long(self) -> Self {
        Self {
            core: false,
            ..self
        }
    }

    fn expand(self) -> Vec<Problem> {
        let of = |&dtype: &DType| {
            let mut problem = Problem {
                name: String::new(),
                feature: self.feature,
                task: self.task.clone(),
                dtype,
                values: self.values,
                memory: self.memory,
                core: self.core,
            };
            let kernel = problem.kernel();
            problem.name = format!("{kernel}/{}/{}/{dtype}", self.feature, self.detail);
            problem
        };
        self.dtypes.iter().map(of).collect()
    }
}
