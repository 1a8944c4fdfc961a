use super::*;
use std::sync::Mutex;
use std::time::Duration;

/// Calls the closure that `data` points to.
#[expect(unsafe_code, reason = "as C does it")]
unsafe extern "C" fn call(data: *mut c_void) {
    // SAFETY: a reference to a closure, which outlives the region.
    let body = unsafe { *data.cast::<&(dyn Fn() + Sync)>() };
    body();
}

/// Calls `body` on every thread of a region.
fn region(threads: usize, body: &(dyn Fn() + Sync)) {
    // SAFETY: the body is `Sync`; a panic in it aborts the program.
    #[expect(unsafe_code, reason = "as C does it")]
    unsafe {
        parallel(threads, call, (&raw const body).cast_mut().cast());
    }
}

/// Calls `body` on every thread of a region that starts as `start`.
fn region_with(start: Start, threads: usize, may_claim: bool, body: &(dyn Fn() + Sync)) {
    let data = (&raw const body).cast_mut().cast();
    // SAFETY: the body is `Sync`; a panic in it aborts the program.
    #[expect(unsafe_code, reason = "as C does it")]
    unsafe {
        open_region_with(threads, call, data, start);
        call(data);
    }
    close_region(may_claim);
}

/// Calls `body` on every thread of a region whose other threads are not woken.
fn region_with_sleepers(threads: usize, may_claim: bool, body: &(dyn Fn() + Sync)) {
    region_with(Start::Alone, threads, may_claim, body);
}

/// The numbers of a region's threads, each with the team size it sees, in order.
fn contexts(threads: usize) -> Vec<[usize; 2]> {
    let seen = Mutex::new(Vec::new());
    region(threads, &|| seen.lock().unwrap().push([thread_number(), team_size()]));
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    seen
}

fn expected(threads: usize) -> Vec<[usize; 2]> {
    (0..threads).map(|number| [number, threads]).collect()
}

/// Waits until the workers of a team of the calling thread sleep as on a loaded machine.
fn wait_until_workers_sleep(threads: usize) {
    let sleep = |pool: &Pool| {
        let mut workers = pool.workers.iter().take(threads - 1);
        pool.workers.len() + 1 >= threads && workers.all(|worker| worker.slot.assigned.has_timed_sleeper())
    };
    for attempt in 0u32.. {
        if POOL.with_borrow(sleep) {
            return;
        }
        assert_eq!(WaitPolicy::from_env(), WaitPolicy::Adaptive, "unset OMP_WAIT_POLICY");
        // Those that sleep as on a quiet machine have to be woken once.
        if attempt % 1000 == 0 {
            contexts(threads);
        }
        load::pretend(4_000);
        std::thread::yield_now();
    }
}

#[test]
fn the_opener_does_the_work_of_those_it_does_not_wake() {
    let mut alone = 0;
    for round in 0..200 {
        let threads = 2 + round % 3;
        wait_until_workers_sleep(threads);
        let seen = Mutex::new(Vec::new());
        region_with_sleepers(threads, true, &|| {
            seen.lock().unwrap().push(([thread_number(), team_size()], std::thread::current().id()));
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable_by_key(|(context, _)| *context);
        assert_eq!(seen.iter().map(|(context, _)| *context).collect::<Vec<_>>(), expected(threads));
        // At times a worker wakes by itself, and claims its part.
        alone += u32::from(seen.iter().all(|(_, id)| *id == std::thread::current().id()));
        assert_eq!((thread_number(), team_size(), in_parallel()), (0, 1, false));
    }
    assert!(alone > 100, "{alone}");
}

#[test]
fn sleepers_are_woken_by_a_barrier_and_if_parts_may_not_be_claimed() {
    for may_claim in [true, false] {
        for threads in [2, 4] {
            wait_until_workers_sleep(threads);
            let arrived = AtomicU32::new(0);
            region_with_sleepers(threads, may_claim, &|| {
                for round in 1..=3 {
                    arrived.fetch_add(1, Ordering::Relaxed);
                    barrier();
                    assert!(arrived.load(Ordering::Relaxed) as usize >= round * threads);
                    barrier();
                }
            });
            assert_eq!(arrived.into_inner() as usize, 3 * threads);
            wait_until_workers_sleep(threads);
            let seen = Mutex::new(Vec::new());
            region_with_sleepers(threads, false, &|| seen.lock().unwrap().push(std::thread::current().id()));
            let mut seen = seen.into_inner().unwrap();
            seen.dedup();
            assert_eq!(seen.len(), threads, "each part on its own thread");
        }
    }
}

/// As oneDNN does in some kernels.
#[test]
fn parts_that_wait_for_each_other_without_a_barrier_end() {
    for threads in [2, 4] {
        wait_until_workers_sleep(threads);
        let arrived = AtomicU32::new(0);
        region_with_sleepers(threads, true, &|| {
            arrived.fetch_add(1, Ordering::Relaxed);
            while (arrived.load(Ordering::Relaxed) as usize) < threads {
                std::hint::spin_loop();
            }
        });
        assert_eq!(arrived.into_inner() as usize, threads);
    }
}

#[test]
fn regions_of_any_sizes_follow_each_other() {
    for threads in [1, 4, 2, 7, 3, 1, 16, 2] {
        assert_eq!(contexts(threads), expected(threads));
        assert_eq!((thread_number(), team_size(), in_parallel()), (0, 1, false));
    }
}

#[test]
fn writes_before_and_in_a_region_are_visible() {
    // Far more threads than CPUs.
    let mut numbers = [0u64; 24];
    for round in 0..500 {
        let cells: Vec<Mutex<&mut u64>> = numbers.iter_mut().map(Mutex::new).collect();
        region(24, &|| **cells[thread_number()].lock().unwrap() += round);
        drop(cells);
        assert!(numbers.iter().all(|number| *number == round * (round + 1) / 2));
    }
}

#[test]
fn a_nested_region_has_one_thread() {
    region(3, &|| {
        let outer = thread_number();
        assert_eq!(contexts(3), expected(1));
        region(1, &|| assert!(in_parallel()));
        assert_eq!((thread_number(), team_size()), (outer, 3));
    });
    region(1, &|| assert_eq!(contexts(3), expected(3), "a team of one is not parallel"));
}

#[test]
fn every_thread_has_its_own_team() {
    let primaries: Vec<_> = (1..6)
        .map(|threads| {
            std::thread::spawn(move || {
                (0..200).for_each(|_| assert_eq!(contexts(threads), expected(threads)));
            })
        })
        .collect();
    for primary in primaries {
        primary.join().unwrap();
    }
}

#[test]
fn no_thread_leaves_a_barrier_before_all_have_arrived() {
    for threads in [2, 5, 16] {
        let arrived: Vec<AtomicU32> = (0..20).map(|_| AtomicU32::new(0)).collect();
        region(threads, &|| {
            for (round, arrived) in (0..).zip(&arrived) {
                // A different thread is late each time; in round 3 late enough for the others to sleep.
                if round % threads == thread_number() {
                    std::thread::sleep(Duration::from_millis(if round == 3 { 20 } else { 0 }));
                }
                arrived.fetch_add(1, Ordering::Relaxed);
                barrier();
                assert_eq!(arrived.load(Ordering::Relaxed) as usize, threads);
            }
        });
    }
    barrier();
}

#[test]
fn regions_wait_for_late_threads_and_wake_sleeping_ones() {
    for late in 0..4 {
        // Longer than any thread spins.
        std::thread::sleep(Duration::from_millis(10));
        let done = AtomicU32::new(0);
        region(4, &|| {
            if thread_number() == late {
                std::thread::sleep(Duration::from_millis(10));
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 4);
    }
}

#[test]
fn worker_threads_exit_with_their_primary_thread() {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let named = || {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "kernels-40").count()
    };
    if threads() == 0 {
        eprintln!("SKIPPED: this system does not list the threads of a program");
        return;
    }
    let primary = std::thread::spawn(move || {
        assert_eq!(contexts(41), expected(41));
        named()
    });
    assert_eq!(primary.join().unwrap(), 1);
    assert_eq!(named(), 0);
}

#[test]
fn the_thread_count_is_set_per_opening_thread() {
    assert!(max_threads() > 0);
    set_max_threads(5);
    assert_eq!(max_threads(), 5);
    assert_ne!(std::thread::spawn(|| THREADS.get()).join().unwrap(), 5);
    set_max_threads(0);
    assert_eq!(max_threads(), 1);
}

#[test]
fn parses_omp_num_threads() {
    for (list, threads) in
        [("4", Some(4)), ("3,2,1", Some(3)), (" 7 ", Some(7)), ("0", None), ("", None), ("many", None)]
    {
        assert_eq!(parse_num_threads(list), threads, "{list:?}");
    }
}

#[test]
fn threads_that_start_apart_leave_the_cpu_of_the_first() {
    if load::usable_cpus() < 2 || load::current_cpu().is_none() {
        eprintln!("SKIPPED: this process may use one CPU only, or CPUs have no numbers");
        return;
    }
    let avoided = |pool: &Pool| pool.workers.first().and_then(|worker| worker.avoided_cpu);
    // A region that starts the thread, which has its number from then on.
    contexts(2);
    for _ in 0..100 {
        let used = Mutex::new(None);
        region_with(Start::Apart, 2, false, &|| {
            if thread_number() == 1 {
                *used.lock().unwrap() = load::current_cpu();
            }
        });
        let avoided = POOL.with_borrow(avoided);
        assert!(avoided.is_some());
        assert_ne!(used.into_inner().unwrap(), avoided);
    }
    // The next region of a quiet machine may use all CPUs again.
    region_with(Start::Together, 2, false, &|| ());
    assert_eq!(POOL.with_borrow(avoided), None);
}
