use flashcube::*;
use cubecl::prelude::*;
fn rnd(n: usize, seed: u64) -> Vec<f32> { let mut st = seed*0x9E3779B97F4A7C15+1; (0..n).map(|_| { st ^= st << 13; st ^= st >> 7; st ^= st << 17; ((st >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.4 }).collect() }
#[test]
fn smoke() {
    let which = std::env::var("B").unwrap_or("cpu".into());
    let client = which.parse::<Backend>().unwrap().open().unwrap();
    println!("{:?}", Caps::of(&client));
    let (b,hq,hk,sq,sk,d,dv)=(2,4,2,37,53,32,32);
    let q=rnd(b*hq*sq*d,1); let k=rnd(b*hk*sk*d,2); let v=rnd(b*hk*sk*dv,3);
    let t=|x:&[f32],s:[usize;4]| Tensor::contiguous(client.create_from_slice(f32::as_bytes(x)), s, DType::F32);
    for roles in [RoleSplit::None, RoleSplit::Softmax] { for order in [attention::IssueOrder::Sequential, attention::IssueOrder::ScoresAhead] { for causal in [false,true] {
        let o=AttendOptions{causal, policy: Policy{roles:Some(roles),order:Some(order),..Default::default()}, ..Default::default()};
        let t0=std::time::Instant::now();
        let r=match attend_forward(&client,&t(&q,[b,hq,sq,d]),&t(&k,[b,hk,sk,d]),&t(&v,[b,hk,sk,dv]),&o){Ok(r)=>r,Err(e)=>{println!("{e}");continue}};
        let out=client.read_one(r.out.handle.clone()).unwrap(); let out=f32::from_bytes(&out);
        let lse=client.read_one(r.lse.handle.clone()).unwrap(); let lse=f32::from_bytes(&lse);
        let t1=std::time::Instant::now(); let r2=attend_forward(&client,&t(&q,[b,hq,sq,d]),&t(&k,[b,hk,sk,d]),&t(&v,[b,hk,sk,dv]),&o).unwrap(); client.read_one(r2.out.handle.clone()).unwrap(); println!("second {:?}", t1.elapsed());
        let mut worst=0f64; let mut wl=0f64;
        for bb in 0..b {for h in 0..hq {for i in 0..sq { let hk_=h/2;
            let sc:Vec<f64>=(0..sk).map(|j| if causal && j as i64 > i as i64 + sk as i64 - sq as i64 {f64::NEG_INFINITY} else {(0..d).map(|x| q[((bb*hq+h)*sq+i)*d+x] as f64*k[((bb*hk+hk_)*sk+j)*d+x] as f64).sum::<f64>()/(d as f64).sqrt()}).collect();
            let m=sc.iter().cloned().fold(f64::MIN,f64::max); let l:f64=sc.iter().map(|s|(s-m).exp()).sum();
            wl=wl.max((m+l.ln()-lse[(bb*hq+h)*sq+i] as f64).abs());
            for x in 0..dv { let a:f64=(0..sk).map(|j|(sc[j]-m).exp()/l*v[((bb*hk+hk_)*sk+j)*dv+x] as f64).sum(); worst=worst.max((a-out[((bb*hq+h)*sq+i)*dv+x] as f64).abs()); }
        }}}
        println!("{} err {worst:.2e} lse {wl:.2e} {:?}", r.blueprint.unwrap(), t0.elapsed());
    }}}
}
