//! `process_*`: the CPU time, the memory and the files of the process, under the names that all Prometheus clients use. On Linux only.

use prometheus_client::registry::Registry;

#[cfg(not(target_os = "linux"))]
pub(super) fn register(_: &mut Registry) {}

#[cfg(target_os = "linux")]
pub(super) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(linux::Process));
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fmt;

    use procfs::{
        ProcResult, WithCurrentSystemInfo, boot_time_secs,
        process::{LimitValue, Process as OfKernel},
        ticks_per_second,
    };
    use prometheus_client::{
        collector::Collector,
        encoding::{DescriptorEncoder, EncodeMetric},
        metrics::{counter::ConstCounter, gauge::ConstGauge},
    };

    #[derive(Debug)]
    pub(super) struct Process;

    /// `/proc/self` at the time of a scrape.
    struct Now {
        cpu_seconds: f64,
        start_time: f64,
        gauges: [(&'static str, &'static str, u64); 5],
    }

    impl Now {
        fn read() -> ProcResult<Now> {
            let process = OfKernel::myself()?;
            let stat = process.stat()?;
            let ticks = ticks_per_second() as f64;
            let files_max = match process.limits()?.max_open_files.soft_limit {
                LimitValue::Value(files) => files,
                LimitValue::Unlimited => u64::MAX,
            };
            Ok(Now {
                cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
                start_time: boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
                gauges: [
                    ("process_resident_memory_bytes", "Resident memory", stat.rss_bytes().get()),
                    ("process_virtual_memory_bytes", "Virtual memory", stat.vsize),
                    ("process_open_fds", "Open files", process.fd_count()? as u64),
                    ("process_max_fds", "Most open files", files_max),
                    ("process_threads", "Threads", stat.num_threads.unsigned_abs()),
                ],
            })
        }
    }

    impl Collector for Process {
        fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
            // Without /proc, a scrape has the other metrics.
            let Ok(now) = Now::read() else { return Ok(()) };
            let cpu = ConstCounter::new(now.cpu_seconds);
            let (name, help) = ("process_cpu_seconds", "User and system CPU time");
            cpu.encode(encoder.encode_descriptor(name, help, None, cpu.metric_type())?)?;
            let start = ConstGauge::new(now.start_time);
            let (name, help) = ("process_start_time_seconds", "When the process started, since 1970");
            start.encode(encoder.encode_descriptor(name, help, None, start.metric_type())?)?;
            for (name, help, value) in now.gauges {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
            Ok(())
        }
    }
}
