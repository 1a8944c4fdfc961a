//! cuDNN and cuBLAS as calls of steps, and the choice among implementations of a step.

use crate::fastest_cache::FastestCache;
use crate::ffi::cublas::{Cublas, Product};
use crate::ffi::cudnn;
use crate::ffi::cudnn::{ConvolutionPlan, Cudnn, PREFIX, Problem};
use crate::ffi::driver::{self, DeviceMemory, Event, Gpu};
use crate::processor::{AMPERE, Argument, Call, Implementation};
use crate::sources::parallel_for_each;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::backend::Operands;
use stratus_engine::{StartupTimes, Tile};

/// A convolution by cuDNN.
pub(crate) struct ConvolutionCall {
    pub plan: Arc<ConvolutionPlan>,
    /// Input, weight, output, or their gradients.
    pub operands: [Argument; 3],
    /// The offset of the workspace in the scratch.
    pub workspace: usize,
}

impl Call for ConvolutionCall {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let workspace = match self.plan.workspace {
            0 => 0,
            _ => Argument::Scratch(self.workspace).word(operands, scratch),
        };
        self.plan.enqueue(self.operands.map(|argument| argument.word(operands, scratch)), workspace)
    }
}

/// A matrix product by cuBLAS.
pub(crate) struct MatmulCall {
    pub cublas: Arc<Cublas>,
    pub product: Product,
    /// A, B and the result C.
    pub operands: [Argument; 3],
}

impl Call for MatmulCall {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let [a, b, c] = self.operands.map(|argument| argument.word(operands, scratch));
        self.cublas.multiply(&self.product, a, b, c)
    }
}

/// The choice among several implementations of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ImplementationChoice<'a> {
    /// The implementation of this name.
    Named(&'a str),
    /// The fastest measured implementation.
    Fastest,
    /// The first implementation in the list.
    First,
}

/// A convolution, and the name of the requested implementation, if any.
pub(crate) type PlanRequest = (Problem, Option<String>);

/// The maximum number of cuDNN's configurations that are measured.
const MAX_PLANS: usize = 6;
/// [`MAX_PLANS`] if native kernels are many times faster than all of cuDNN's: docs/benchmarks/gpu.md.
const MAX_PLANS_WITH_NATIVE: usize = 1;
/// The maximum workspace of a configuration in bytes.
const MAX_WORKSPACE_BYTES: usize = 1 << 30;

/// The maximum number of threads that query cuDNN in parallel, each with its own handle.
const MAX_PLANNER_THREADS: usize = 16;

/// The libraries of a GPU.
pub(crate) struct GpuLibraries {
    pub gpu: Arc<Gpu>,
    pub cudnn: Arc<Cudnn>,
    pub cublas: Arc<Cublas>,
    /// True if f32 factors may be rounded to TF32.
    pub tf32: bool,
    pub phases: Arc<StartupTimes>,
    /// The fastest implementation of each convolution measured so far.
    fastest_cache: FastestCache,
    /// cuDNN's plans by request, the best by its estimate first. Equal convolutions share one.
    plans: Mutex<HashMap<PlanRequest, Vec<Arc<ConvolutionPlan>>>>,
    /// Handles of threads that query cuDNN, while unused.
    planners: Mutex<Vec<Arc<Cudnn>>>,
    /// Operands and scratch for measuring, reused for all problems.
    measuring_memory: Mutex<Option<DeviceMemory>>,
}

/// The alignment of operands in bytes while measuring.
const ALIGNMENT: usize = 256;
/// The number of timed runs of each implementation; the shortest counts.
const TIMED_RUNS: usize = 3;

/// Returns whether a candidate whose run took `time` nanoseconds need not run again. `fastest` is the
/// shortest run of all so far. The first run of a candidate may have loaded its kernel, which takes
/// milliseconds; other runs differ by a few percent.
fn is_hopeless(run: usize, time: u64, fastest: u64) -> bool {
    const LOADING: u64 = 20_000_000;
    match run {
        0 => time.saturating_sub(LOADING) / 2 > fastest,
        _ => time - time / 5 > fastest,
    }
}

impl GpuLibraries {
    /// Opens cuDNN and cuBLAS on a GPU. Measurements are kept in the folder `cache`.
    ///
    /// # Errors
    /// The error message of a library.
    pub fn new(
        gpu: &Arc<Gpu>,
        tf32: bool,
        cache: Option<&Path>,
        phases: &Arc<StartupTimes>,
    ) -> Result<Self, String> {
        // Each takes tenths of a second, so they are opened in parallel.
        let (cudnn, cublas) = std::thread::scope(|scope| {
            let cublas = scope.spawn(|| Cublas::new(gpu));
            (Cudnn::new(gpu), cublas.join())
        });
        let (cudnn, cublas) = (cudnn?, cublas.map_err(|_| "cannot open cuBLAS".to_owned())??);
        let (cuda, _) = driver::driver()?;
        let versions = [cuda, cublas.version()?, cudnn::version(), env!("STRATUS_KERNELS").to_owned()];
        let machine = format!("{} {:?} {}", gpu.name, gpu.capability, versions.join(" "));
        Ok(Self {
            gpu: Arc::clone(gpu),
            cudnn: Arc::new(cudnn),
            cublas: Arc::new(cublas),
            tf32,
            phases: Arc::clone(phases),
            fastest_cache: FastestCache::open(cache, &machine),
            plans: Mutex::default(),
            planners: Mutex::default(),
            measuring_memory: Mutex::default(),
        })
    }

    /// The name of the fastest implementation, if this problem was measured before.
    fn cached(&self, problem: &Problem) -> Option<String> {
        self.fastest_cache.get(problem)
    }

    /// The name that [`Self::choose`] will choose, if already certain.
    pub fn chosen_name(&self, problem: &Problem, choice: ImplementationChoice<'_>) -> Option<String> {
        match choice {
            ImplementationChoice::Named(name) => Some(name.to_owned()),
            ImplementationChoice::Fastest => self.cached(problem),
            ImplementationChoice::First => None,
        }
    }

    /// cuDNN's plans for a convolution, or only the plan of the given name. Empty if it has none: a native
    /// kernel computes it then, and cuDNN's error would not help.
    pub fn plans(&self, problem: &Problem, only: Option<&str>) -> Vec<Arc<ConvolutionPlan>> {
        let request = (*problem, only.map(str::to_owned));
        let cache = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let cached_plans = cache().get(&request).cloned();
        cached_plans.unwrap_or_else(|| {
            let query = || self.query(&self.cudnn, &request);
            let plans = self.phases.time("querying cuDNN for plans", query);
            cache().insert(request.clone(), plans.clone());
            plans
        })
    }

    fn query(&self, cudnn: &Arc<Cudnn>, (problem, only): &PlanRequest) -> Vec<Arc<ConvolutionPlan>> {
        let [major, minor] = self.gpu.capability;
        let has_native = 10 * major + minor >= AMPERE && problem.has_fast_native();
        let max_plans = if has_native { MAX_PLANS_WITH_NATIVE } else { MAX_PLANS };
        let plans = cudnn.plans(problem, max_plans, MAX_WORKSPACE_BYTES, only.as_deref()).unwrap_or_default();
        plans.into_iter().map(Arc::new).collect()
    }

    /// Queries cuDNN for plans in parallel, for convolutions without plans.
    pub fn prefetch_plans(&self, convolutions: Vec<PlanRequest>) {
        let cache = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let planners = || self.planners.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests: Vec<PlanRequest> = Vec::new();
        for (problem, requested) in convolutions {
            let name = requested.or_else(|| self.cached(&problem));
            let request = (problem, name);
            let is_cudnn = request.1.as_ref().is_none_or(|name| name.starts_with(PREFIX));
            if is_cudnn && !cache().contains_key(&request) && !requests.contains(&request) {
                requests.push(request);
            }
        }
        let query = |request: &PlanRequest| {
            let idle = planners().pop();
            // Plans that cannot be queried now are queried when they are needed.
            let Some(cudnn) = idle.or_else(|| Cudnn::new(&self.gpu).ok().map(Arc::new)) else { return };
            let plans = self.query(&cudnn, request);
            cache().insert(request.clone(), plans);
            planners().push(cudnn);
        };
        self.phases
            .time("querying cuDNN for plans", || parallel_for_each(&requests, MAX_PLANNER_THREADS, query));
        planners().clear();
    }

    /// Drops the measured plans of a convolution except the chosen one.
    fn keep_plan(&self, problem: &Problem, name: &str) {
        let mut cache = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = cache.remove(&(*problem, None)).unwrap_or_default();
        let chosen = measured.into_iter().filter(|plan| plan.name == name).collect();
        cache.insert((*problem, Some(name.to_owned())), chosen);
    }

    /// Chooses among `candidates`. `operands` are pairs of an operand's position and its bytes.
    ///
    /// # Errors
    /// If no candidate has the requested name, or none runs.
    pub fn choose(
        &self,
        problem: &Problem,
        mut candidates: Vec<Implementation>,
        operands: impl Iterator<Item = (usize, usize)>,
        choice: ImplementationChoice<'_>,
    ) -> Result<Implementation, String> {
        let named = |name: &str| candidates.iter().position(|candidate| candidate.name == name);
        let position = match choice {
            ImplementationChoice::Named(name) => {
                named(name).ok_or_else(|| format!("no implementation `{name}`"))?
            }
            ImplementationChoice::First => 0,
            ImplementationChoice::Fastest => match self.cached(problem).and_then(|name| named(&name)) {
                Some(position) => position,
                None => {
                    let measure = || self.fastest(&mut candidates, operands);
                    let fastest = self.phases.time("measuring kernels", measure)?;
                    self.fastest_cache.set(problem, &candidates[fastest].name);
                    self.keep_plan(problem, &candidates[fastest].name);
                    fastest
                }
            },
        };
        Ok(candidates.swap_remove(position))
    }

    /// Clears all measurements.
    pub fn clear_timings(&self) {
        self.fastest_cache.forget();
    }

    /// Saves the measurements, and frees the memory for measuring.
    pub fn finish_measuring(&self) {
        self.fastest_cache.save();
        *self.measuring_memory.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn fastest(
        &self,
        candidates: &mut [Implementation],
        operands: impl Iterator<Item = (usize, usize)>,
    ) -> Result<usize, String> {
        if candidates.len() == 1 {
            return Ok(0);
        }
        let operands: Vec<(usize, usize)> = operands.collect();
        let scratch = operands.iter().map(|(position, _)| position + 1).max().unwrap_or(0);
        let mut addresses = Operands::new(Tile::WHOLE);
        let mut bytes = 0;
        for &(position, size) in &operands {
            addresses.set_address(position, bytes as u64);
            bytes += size.next_multiple_of(ALIGNMENT);
        }
        addresses.set_address(scratch, bytes as u64);
        bytes += candidates.iter().map(|candidate| candidate.scratch_bytes).max().unwrap_or(0);
        let mut memory = self.measuring_memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            *memory = None;
            *memory = Some(DeviceMemory::filled(&self.gpu, bytes, 0x3c)?);
        }
        let base = memory.as_ref().map_or(0, DeviceMemory::address);
        for position in operands.iter().map(|&(position, _)| position).chain([scratch]) {
            addresses.set_address(position, base + addresses.address(position));
        }
        let events = [Event::new(&self.gpu)?, Event::new(&self.gpu)?];
        let mut times = vec![u64::MAX; candidates.len()];
        let mut failure = String::new();
        let mut fastest = u64::MAX;
        for (candidate, best) in candidates.iter_mut().zip(&mut times) {
            for run in 0..=TIMED_RUNS {
                let measured = self.measure(candidate, &addresses, scratch, &events);
                match measured {
                    Ok(time) => {
                        // The first run loads the kernel.
                        if run > 0 {
                            *best = time.min(*best);
                            fastest = time.min(fastest);
                        }
                        if is_hopeless(run, time, fastest) {
                            break;
                        }
                    }
                    Err(reason) => {
                        failure = reason;
                        break;
                    }
                }
            }
        }
        let fastest = (0..times.len()).min_by_key(|&candidate| times[candidate]);
        fastest.filter(|&candidate| times[candidate] < u64::MAX).ok_or(failure)
    }

    /// The time of one run in nanoseconds.
    fn measure(
        &self,
        candidate: &mut Implementation,
        addresses: &Operands<'_>,
        scratch: usize,
        events: &[Event; 2],
    ) -> Result<u64, String> {
        events[0].record()?;
        candidate.calls.iter_mut().try_for_each(|call| call.enqueue(addresses, scratch))?;
        events[1].record()?;
        self.gpu.wait()?;
        events[1].since(&events[0])
    }
}

#[cfg(test)]
mod tests {
    use super::is_hopeless;

    #[test]
    fn candidates_run_while_they_may_be_the_fastest() {
        const MS: u64 = 1_000_000;
        // Before the first measurement, none is hopeless.
        assert!(!is_hopeless(0, 900 * MS, u64::MAX) && !is_hopeless(1, 900 * MS, u64::MAX));
        // A first run may have loaded its kernel.
        assert!(!is_hopeless(0, 21 * MS, MS) && is_hopeless(0, 25 * MS, MS));
        // Any other run that is a quarter longer is hopeless; the fastest candidate itself continues.
        assert!(is_hopeless(1, 130 * MS, 100 * MS) && !is_hopeless(2, 120 * MS, 100 * MS));
        assert!(!is_hopeless(3, 100 * MS, 100 * MS));
    }
}
