use rt_abstract::*;
use rt_compio::Compio;
use std::net::*;
use std::io::{Read, Write};
fn cpu() -> f64 { let s = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap(); s.split(' ').next().unwrap().parse::<f64>().unwrap()/1e9 }
fn rss() -> usize { let s = std::fs::read_to_string("/proc/self/statm").unwrap(); s.split(' ').nth(1).unwrap().parse::<usize>().unwrap()*4096 }
fn main() {
    let conns: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let rounds: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let opts = RunOptions { force_fallback: std::env::var("FB").is_ok(), pinning: Pinning::Cpus(vec![0]), ..Default::default() };
    Compio::run_cores(&opts, move |_| async move {
        let mut l = Compio::listener(bind(&"127.0.0.1:0".parse().unwrap(), 1024).unwrap()).unwrap();
        let Address::Tcp(a) = l.local_address().unwrap() else { panic!() };
        let client = std::thread::spawn(move || {
            os::pin_thread(&Pinning::Cpus(vec![1]), 0).unwrap();
            let mut s: Vec<TcpStream> = (0..conns).map(|_| { let s = TcpStream::connect(a).unwrap(); s.set_nodelay(true).unwrap(); s }).collect();
            let t = std::time::Instant::now();
            let mut b = [0u8; 100];
            for _ in 0..rounds {
                for s in &mut s { s.write_all(&[1; 100]).unwrap(); }
                for s in &mut s { s.read_exact(&mut b).unwrap(); }
            }
            (t.elapsed(), s)
        });
        let r0 = rss();
        let mut hs = vec![];
        for _ in 0..conns {
            let (mut s, _) = l.accept().await.unwrap();
            hs.push(Compio::spawn(async move {
                let mut pool = vec![];
                loop {
                    let (r, b) = if std::env::var("PLAIN").is_ok() {
                        let (r, b) = s.read(Vec::with_capacity(4096)).await; (r, Some(b))
                    } else {
                        let p = std::cell::RefCell::new(&mut pool);
                        let _ = &p;
                        s.read_lazy(|| Vec::<u8>::with_capacity(4096), |_b| ()).await
                    };
                    if r.unwrap() == 0 { break }
                    let (r, _b) = s.write_all(b.unwrap()).await; r.unwrap();
                    if false { pool.push(1u8); }
                }
            }));
        }
        if rounds == 0 { Compio::sleep(std::time::Duration::from_millis(300)).await; println!("idle bytes per conn (server task+client vec): {}", (rss()-r0)/conns); }
        let c0 = cpu();
        let done = Compio::spawn_blocking(move || client.join().unwrap()).await.unwrap();
        let c = cpu() - c0;
        let n = (conns*rounds.max(1)) as f64;
        println!("{:.2} us cpu/req, {:.0} req/s", c*1e6/n, n/done.0.as_secs_f64());
        drop(done);
        for h in hs { h.await.unwrap(); }
    }).unwrap();
}
