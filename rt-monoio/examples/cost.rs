use std::io::{Read, Write};
use std::net::TcpStream;
use rt_abstract::*;
use rt_monoio::Monoio;

fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
fn rss() -> usize {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    s.lines().find(|l| l.starts_with("RssAnon")).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}
fn main() {
    let mode = std::env::args().nth(1).unwrap();
    let conns: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let rounds: usize = std::env::args().nth(3).unwrap().parse().unwrap();
    let fd = bind(&Address::Tcp(([127, 0, 0, 1], 0).into()), 1024).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        let addr: std::net::SocketAddr = rx.recv().unwrap();
        let mut s: Vec<_> = (0..conns).map(|_| { let s = TcpStream::connect(addr).unwrap(); s.set_nodelay(true).unwrap(); s }).collect();
        let mut b = [0u8; 64];
        if rounds == 0 { std::thread::sleep(std::time::Duration::from_millis(700)); }
        let t = std::time::Instant::now();
        for _ in 0..rounds {
            for c in &mut s { c.write_all(&[1; 32]).unwrap(); }
            for c in &mut s { c.read_exact(&mut b[..32]).unwrap(); }
        }
        let el = t.elapsed();
        drop(s);
        el
    });
    let opts = RunOptions { force_fallback: mode == "legacy", pinning: Pinning::Cpus(vec![0]), ..Default::default() };
    let fd = std::sync::Mutex::new(Some(fd)); 
    let out = Monoio::run_cores(&opts, move |_| { let fd = fd.lock().unwrap().take().unwrap(); let tx = tx.clone(); async move {
        let mut l = Monoio::listener(fd).unwrap();
        let Address::Tcp(a) = l.local_address().unwrap() else { panic!() };
        let before = rss();
        tx.send(a).unwrap();
        let mut tasks = Vec::with_capacity(conns);
        for _ in 0..conns {
            let (s, _) = l.accept().await.unwrap();
            tasks.push(Monoio::spawn(async move {
                let (mut r, mut w) = s.into_split();
                loop {
                    let (n, buf) = r.read_lazy(|| Vec::with_capacity(4096), drop).await;
                    match n { Ok(0) | Err(_) => break, Ok(_) => {} }
                    if w.write_all(buf.unwrap()).await.0.is_err() { break; }
                }
            }));
        }
        Monoio::sleep(std::time::Duration::from_millis(100)).await;
        let mem = (rss() - before) * 1024 / conns.max(1);
        let c0 = cpu();
        for t in tasks { t.await.unwrap(); }
        (cpu() - c0, mem)
    }}).unwrap();
    let el = client.join().unwrap();
    let n = (conns * rounds).max(1) as f64;
    println!("{mode} {} conns={conns} cpu/req={:.2}us wall/req={:.2}us rss/conn={}", std::env::var("GB_SETUP").unwrap_or_default(), out[0].0 / n * 1e6, el.as_secs_f64() / n * 1e6, out[0].1);
}
