//! Compiles the kernels of a program in parallel, before its steps are built.

use crate::processor::{Function, Processor, Shape, Source};
use crate::timestamps::TimestampSlots;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Kernels that replace the libraries if these are missing.
const PLAIN: [&str; 4] = ["conv_forward", "conv_backward_data", "conv_backward_weights", "multiply"];

/// A processor that collects the sources that steps need, and compiles and runs nothing.
pub(crate) struct SourceCollector {
    capability: u32,
    multiprocessors: u32,
    /// True if there are libraries, so that plain kernels are hardly ever needed.
    has_libraries: bool,
    sources: Mutex<Vec<Source>>,
    timestamps: TimestampSlots,
}

impl SourceCollector {
    /// A collector in place of a processor.
    pub fn for_processor(processor: &dyn Processor, has_libraries: bool) -> Self {
        Self {
            capability: processor.capability(),
            multiprocessors: processor.multiprocessors(),
            has_libraries,
            sources: Mutex::default(),
            timestamps: TimestampSlots::default(),
        }
    }

    /// The sources, each once, in the order in which they were first needed.
    pub fn take(&self) -> Vec<Source> {
        std::mem::take(&mut *self.sources.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Processor for SourceCollector {
    fn function(&self, source: &Source, name: &str) -> Result<Function, String> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let is_replaced = self.has_libraries && PLAIN.contains(&name);
        if !is_replaced && !sources.contains(source) {
            sources.push(source.clone());
        }
        Ok(Function(0))
    }

    fn launch(&self, _function: Function, _shape: Shape, _arguments: &mut [u64]) -> Result<(), String> {
        Err("the source collector runs nothing".to_owned())
    }

    fn timestamps(&self) -> &TimestampSlots {
        &self.timestamps
    }

    fn capability(&self) -> u32 {
        self.capability
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}

/// Calls `compile` for every source. Large files are first, so that none of them starts last.
pub(crate) fn compile_in_parallel(mut sources: Vec<Source>, compile: impl Fn(&Source) + Sync) {
    sources.sort_by_key(|source| std::cmp::Reverse(source.body().len()));
    parallel_for_each(&sources, usize::MAX, compile);
}

/// Calls `process` for every item, on as many threads as there are CPUs, but at most `max_threads`.
pub(crate) fn parallel_for_each<T: Sync>(items: &[T], max_threads: usize, process: impl Fn(&T) + Sync) {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = processors.min(items.len()).min(max_threads);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            process(item);
        }
    };
    std::thread::scope(|scope| {
        // If no more threads can be started, the existing ones do the work.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).is_ok();
        let _ = (1..threads).take_while(|number| spawn(*number)).count();
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_engine::DType;

    #[test]
    fn every_source_is_compiled_once() {
        for count in [0, 1, 40] {
            let sources: Vec<Source> =
                (0..count).map(|number| Source::new("update", DType::F32, number)).collect();
            let compiled = Mutex::new(Vec::new());
            compile_in_parallel(sources.clone(), |source| compiled.lock().unwrap().push(source.clone()));
            let mut compiled = compiled.into_inner().unwrap();
            compiled.sort_by_key(|source| source.definitions[1].1.parse::<usize>().unwrap());
            assert_eq!(compiled, sources);
        }
    }
}
