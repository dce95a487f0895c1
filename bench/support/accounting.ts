// What the operating system says about processes: CPU time, memory, open files, load. Linux only (/proc).
import fs from "node:fs";
import os from "node:os";

function read(file: string): string | null {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return null; // the process or thread ended between listing and reading
  }
}

function list(folder: string): string[] {
  try {
    return fs.readdirSync(folder);
  } catch {
    return [];
  }
}

/** The process and everything that it started, itself first. */
export function descendants(pid: number): number[] {
  const found = [pid];
  for (const task of list(`/proc/${pid}/task`)) {
    const children = read(`/proc/${pid}/task/${task}/children`) ?? "";
    for (const child of children.split(" ").filter((word) => word.trim() !== ""))
      found.push(...descendants(Number(child)));
  }
  return found;
}

/**
 * CPU time in nanoseconds of all live threads (first field of schedstat, exact). Includes kernel work done in the
 * process's own context, loopback delivery to the receiver among it. Time of threads that have ended is not in it:
 * compare with cpuTicksNs.
 */
export function cpuNs(pids: readonly number[]): number {
  let total = 0;
  for (const pid of pids) {
    for (const task of list(`/proc/${pid}/task`)) {
      total += Number((read(`/proc/${pid}/task/${task}/schedstat`) ?? "0").split(" ")[0]);
    }
  }
  return total;
}

/** The same from /proc/PID/stat: only exact to 10 ms, but with the time of ended threads. */
export function cpuTicksNs(pids: readonly number[]): number {
  let ticks = 0;
  for (const pid of pids) {
    const fields = (read(`/proc/${pid}/stat`) ?? "").split(") ")[1]?.split(" ");
    if (fields !== undefined) ticks += Number(fields[11]) + Number(fields[12]);
  }
  return ticks * 10_000_000;
}

/** Proportional set size in KB: shared pages count by their share. */
export function pssKb(pids: readonly number[]): number {
  let total = 0;
  for (const pid of pids) {
    const line = /^Pss:\s+(\d+) kB$/m.exec(read(`/proc/${pid}/smaps_rollup`) ?? "");
    total += line === null ? 0 : Number(line[1]);
  }
  return total;
}

export function openFiles(pids: readonly number[]): number {
  return pids.reduce((sum, pid) => sum + list(`/proc/${pid}/fd`).length, 0);
}

/** Busy time of one CPU in nanoseconds since boot, by whomever (10 ms steps). */
export function cpuBusyNs(cpu: number): number {
  const line = new RegExp(`^cpu${cpu} (.*)$`, "m").exec(read("/proc/stat") ?? "");
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0, steal = 0] = (line?.[1] ?? "")
    .split(" ")
    .map(Number);
  return (user + nice + system + irq + softirq + steal) * 10_000_000;
}

export function loadAverage(): number {
  return Math.round((os.loadavg()[0] ?? 0) * 100) / 100;
}

/** The hard limit on open files of this process; Infinity when there is none. */
export function openFilesLimit(): number {
  const line = /^Max open files\s+\S+\s+(\S+)/m.exec(read("/proc/self/limits") ?? "");
  return line?.[1] === undefined || line[1] === "unlimited" ? Infinity : Number(line[1]);
}

export function machine(): Record<string, string | number> {
  return {
    cpu: os.cpus()[0]?.model ?? "unknown",
    cpus: os.cpus().length,
    memoryGiB: Math.round(os.totalmem() / 2 ** 30),
    kernel: os.release(),
    openFilesHardLimit: openFilesLimit(),
  };
}
