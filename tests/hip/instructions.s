// One small kernel per instruction, for emulator_test.cpp: lane l loads its inputs (dwords) into v10.., the body writes
// v40.., which lane l stores. Kernels named bad_* hold a mistake that the emulator must report.
.amdgcn_target "amdgcn-amd-amdhsa--gfx950"

.macro begin name, in, out
  .globl \name
  .p2align 8
  .type \name,@function
\name:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mul_u32_u24 v1, 4*\in, v0
  v_mul_u32_u24 v2, 4*\out, v0
  s_waitcnt lgkmcnt(0)
  .set k, 0
  .rept \in
  global_load_dword v[10+k], v1, s[4:5] offset:4*k
  .set k, k+1
  .endr
  s_waitcnt vmcnt(0)
.endm

.macro end name, out
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_nop 15
  s_nop 15
  .set k, 0
  .rept \out
  global_store_dword v2, v[40+k], s[6:7] offset:4*k
  .set k, k+1
  .endr
  s_endpgm
.L\name\()_end:
  .size \name, .L\name\()_end-\name
  .rodata
  .p2align 6
  .amdhsa_kernel \name
    .amdhsa_group_segment_fixed_size 16384
    .amdhsa_kernarg_size 16
    .amdhsa_user_sgpr_kernarg_segment_ptr 1
    .amdhsa_next_free_vgpr 128
    .amdhsa_next_free_sgpr 32
    .amdhsa_accum_offset 128
  .end_amdhsa_kernel
  .text
.endm

.macro unit name, in, out, body:vararg
  begin \name, \in, \out
  \body
  end \name, \out
.endm

.text
unit mov, 1, 1, v_mov_b32 v40, v10
unit bitop3, 3, 1, v_bitop3_b32 v40, v10, v11, v12 bitop3:0x6a
unit perm, 3, 1, v_perm_b32 v40, v10, v11, v12
unit pack_f16, 2, 1, v_pack_b32_f16 v40, v10, v11 op_sel:[1,0,0]
unit bfrev, 1, 1, v_bfrev_b32 v40, v10
unit bfi, 3, 1, v_bfi_b32 v40, v10, v11, v12
unit and_or, 3, 1, v_and_or_b32 v40, v10, v11, v12
unit bfe_u32, 1, 1, v_bfe_u32 v40, v10, 5, 7
unit bfe_i32, 1, 1, v_bfe_i32 v40, v10, 5, 7
unit ashr, 2, 1, v_ashrrev_i32 v40, v10, v11
unit mul_hi, 2, 1, v_mul_hi_u32 v40, v10, v11
unit lshl_add, 3, 1, v_lshl_add_u32 v40, v10, 3, v12
unit mad_u64, 4, 2, v_mad_u64_u32 v[40:41], vcc, v10, v11, v[12:13]
unit lshr_b64, 3, 2, v_lshrrev_b64 v[40:41], v12, v[10:11]
unit prng, 1, 1, v_prng_b32 v40, v10
unit pk_ashr_i16, 1, 1, v_pk_ashrrev_i16 v40, 4, v10 op_sel_hi:[0,1]
unit pk_min_u16, 2, 1, v_pk_min_u16 v40, v10, v11
unit pk_min_i16, 2, 1, v_pk_min_i16 v40, v10, v11
unit fma, 3, 1, v_fma_f32 v40, -v10, |v11|, v12
unit med3, 3, 1, v_med3_f32 v40, v10, v11, v12
unit max3, 3, 1, v_max3_f32 v40, v10, v11, v12
unit maximum3, 3, 1, v_maximum3_f32 v40, v10, v11, v12
unit pk_fma, 6, 2, v_pk_fma_f32 v[40:41], v[10:11], v[12:13], v[14:15] op_sel_hi:[1,0,1] neg_lo:[0,1,0] neg_hi:[0,1,0]
unit pk_mul, 4, 2, v_pk_mul_f32 v[40:41], v[10:11], v[12:13] op_sel:[0,1]
unit exp, 1, 1, v_exp_f32 v40, v10
unit log, 1, 1, v_log_f32 v40, |v10|
unit rcp, 1, 1, v_rcp_f32 v40, v10
unit ldexp, 1, 1, v_ldexp_f32 v40, v10, -7
unit fma_mix, 3, 1, v_fma_mix_f32 v40, v10, v11, v12 op_sel:[1,0,0] op_sel_hi:[1,0,0]
unit cvt_pk_bf16, 2, 1, v_cvt_pk_bf16_f32 v40, v10, v11
unit cvt_f32_f16, 1, 1, v_cvt_f32_f16 v40, v10
unit cvt_f32_fp8, 1, 1, v_cvt_f32_fp8_sdwa v40, v10 src0_sel:BYTE_2
unit cvt_pk_f32_fp8, 1, 2, v_cvt_pk_f32_fp8_sdwa v[40:41], v10 src0_sel:WORD_1
unit scaled_bf16_fp8, 2, 1, v_cvt_scalef32_pk_bf16_fp8 v40, v10, v11 op_sel:[1,0]
unit scaled_f32_fp8, 2, 2, v_cvt_scalef32_pk_f32_fp8 v[40:41], v10, v11

unit and, 2, 1, v_and_b32 v40, v10, v11
unit or, 2, 1, v_or_b32 v40, v10, v11
unit or3, 3, 1, v_or3_b32 v40, v10, v11, v12
unit not, 1, 1, v_not_b32 v40, v10
unit lshl_or, 3, 1, v_lshl_or_b32 v40, v10, 5, v12
unit xad, 3, 1, v_xad_u32 v40, v10, v11, v12
unit add3, 3, 1, v_add3_u32 v40, v10, v11, v12
unit add_lshl, 2, 1, v_add_lshl_u32 v40, v10, v11, 3
unit subrev, 2, 1, v_subrev_u32 v40, v10, v11
unit sub_u16, 2, 1, v_sub_u16 v40, v10, v11
unit mul_lo, 2, 1, v_mul_lo_u32 v40, v10, v11
unit mul_lo_u16, 2, 1, v_mul_lo_u16 v40, v10, v11
unit mul_i24, 2, 1, v_mul_i32_i24 v40, v10, v11
unit mad_i24, 3, 1, v_mad_i32_i24 v40, v10, v11, v12
unit mad_u24, 3, 1, v_mad_u32_u24 v40, v10, v11, v12
unit mad_i64, 4, 2, v_mad_i64_i32 v[40:41], vcc, v10, v11, v[12:13]
unit min_i32, 2, 1, v_min_i32 v40, v10, v11
unit lshl_b64, 3, 2, v_lshlrev_b64 v[40:41], v12, v[10:11]
unit lshl_add_u64, 4, 2, v_lshl_add_u64 v[40:41], v[10:11], 3, v[12:13]
unit mov_b64, 2, 2, v_mov_b64 v[40:41], v[10:11]
unit pk_mov, 4, 2, v_pk_mov_b32 v[40:41], v[10:11], v[12:13] op_sel:[1,0]
unit add, 2, 1, v_add_f32 v40, v10, -v11
unit sub, 2, 1, v_sub_f32 v40, |v10|, v11
unit mul, 2, 1, v_mul_f32 v40, v10, v11 mul:2
unit max, 2, 1, v_max_f32 v40, v10, v11
unit pk_add, 4, 2, v_pk_add_f32 v[40:41], v[10:11], v[12:13] neg_lo:[0,1]
unit cvt_f16, 1, 1, v_cvt_f16_f32 v40, v10
unit cvt_pk_f16, 2, 1, v_cvt_pk_f16_f32 v40, v10, v11
unit mfma_16x16x16_bf16, 8, 4, v_mfma_f32_16x16x16_bf16 v[40:43], v[10:11], v[12:13], v[14:17]
unit mfma_16x16x16_f16, 8, 4, v_mfma_f32_16x16x16_f16 v[40:43], v[10:11], v[12:13], v[14:17]

begin fmac, 3, 1
  v_mov_b32 v40, v12
  v_fmac_f32 v40, v10, v11
end fmac, 1

begin agpr, 1, 1
  v_accvgpr_write_b32 a3, v10
  v_accvgpr_read_b32 v40, a3
end agpr, 1

begin readfirstlane, 1, 1
  v_cmp_gt_u32 vcc, v0, 5
  s_and_saveexec_b64 s[10:11], vcc
  v_readfirstlane_b32 s12, v10
  s_mov_b64 exec, s[10:11]
  v_mov_b32 v40, s12
end readfirstlane, 1

// Comparisons: the wave's mask.
.macro compare name, in, operands:vararg
  begin \name, \in, 2
  v_\name vcc, \operands
  v_mov_b32 v40, vcc_lo
  v_mov_b32 v41, vcc_hi
  end \name, 2
.endm
compare cmp_eq_f32, 2, v10, v11
compare cmp_neq_f32, 2, v10, v11
compare cmp_u_f32, 2, v10, v11
compare cmp_lt_f32, 2, v10, v11
compare cmp_gt_f32, 2, v10, v11
compare cmp_eq_u32, 2, v10, v11
compare cmp_ne_u32, 2, v10, v11
compare cmp_lt_u32, 2, v10, v11
compare cmp_gt_u32, 2, v10, v11
compare cmp_gt_i32, 2, v10, v11
compare cmp_le_i32, 2, v10, v11
compare cmp_ne_u16, 2, v10, v11
compare cmp_gt_i64, 4, v[10:11], v[12:13]
compare cmp_lt_i64, 4, v[10:11], v[12:13]

// Scalar instructions: lane 0's inputs in s20.., results in s30..
.macro scalar name, in, out, body:vararg
  begin \name, \in, \out
  .set k, 0
  .rept \in
  v_readlane_b32 s[20+k], v[10+k], 0
  .set k, k+1
  .endr
  s_nop 4
  \body
  .set k, 0
  .rept \out
  v_mov_b32 v[40+k], s[30+k]
  .set k, k+1
  .endr
  end \name, \out
.endm
scalar s_add, 2, 1, s_add_i32 s30, s20, s21
scalar s_sub, 2, 1, s_sub_i32 s30, s20, s21
scalar s_mul, 2, 1, s_mul_i32 s30, s20, s21
scalar s_mul_hi_u, 2, 1, s_mul_hi_u32 s30, s20, s21
scalar s_mul_hi_i, 2, 1, s_mul_hi_i32 s30, s20, s21
scalar s_and, 2, 1, s_and_b32 s30, s20, s21
scalar s_or, 2, 1, s_or_b32 s30, s20, s21
scalar s_xor, 2, 1, s_xor_b32 s30, s20, s21
scalar s_andn2, 2, 1, s_andn2_b32 s30, s20, s21
scalar s_not, 1, 1, s_not_b32 s30, s20
scalar s_brev, 1, 1, s_brev_b32 s30, s20
scalar s_lshl, 2, 1, s_lshl_b32 s30, s20, s21
scalar s_lshr, 2, 1, s_lshr_b32 s30, s20, s21
scalar s_ashr, 2, 1, s_ashr_i32 s30, s20, s21
scalar s_lshl_b64, 3, 2, s_lshl_b64 s[30:31], s[20:21], s22
scalar s_bfe, 1, 1, s_bfe_u32 s30, s20, 0x70005
scalar s_min_i, 2, 1, s_min_i32 s30, s20, s21
scalar s_max_i, 2, 1, s_max_i32 s30, s20, s21
scalar s_min_u, 2, 1, s_min_u32 s30, s20, s21
scalar s_lshl4_add, 2, 1, s_lshl4_add_u32 s30, s20, s21

// A 64-bit sum by its carry, and a choice by a comparison.
begin s_carry, 4, 2
  .set k, 0
  .rept 4
  v_readlane_b32 s[20+k], v[10+k], 0
  .set k, k+1
  .endr
  s_nop 4
  s_add_u32 s30, s20, s22
  s_addc_u32 s31, s21, s23
  v_mov_b32 v40, s30
  v_mov_b32 v41, s31
end s_carry, 2

.macro choose name, condition:vararg  // 1 if the condition holds
  begin \name, 2, 1
  v_readlane_b32 s20, v10, 0
  v_readlane_b32 s21, v11, 0
  s_nop 4
  \condition
  s_cselect_b32 s30, 1, 0
  v_mov_b32 v40, s30
  end \name, 1
.endm
choose s_lt_i, s_cmp_lt_i32 s20, s21
choose s_ge_i, s_cmp_ge_i32 s20, s21
choose s_gt_i, s_cmp_gt_i32 s20, s21
choose s_lt_u, s_cmp_lt_u32 s20, s21
choose s_ge_u, s_cmp_ge_u32 s20, s21
choose s_eq_u, s_cmp_eq_u32 s20, s21
choose s_lg_u, s_cmp_lg_u32 s20, s21
choose s_eq_u64, s_cmp_eq_u64 s[20:21], s[20:21]
choose s_bit0, s_bitcmp0_b32 s20, s21
choose s_bit1, s_bitcmp1_b32 s20, s21

begin cmp_class, 1, 2
  v_cmp_class_f32 vcc, v10, 3
  v_mov_b32 v40, vcc_lo
  v_mov_b32 v41, vcc_hi
end cmp_class, 2

begin cndmask, 3, 1
  v_cmp_lt_i32 vcc, v10, v11
  v_cndmask_b32 v40, v11, v12, vcc
end cndmask, 1

begin sdwa, 3, 1
  v_mov_b32 v40, v11
  v_lshlrev_b32_sdwa v40, v12, sext(v10) dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:BYTE_1
end sdwa, 1
unit row_ror, 1, 1, v_mov_b32_dpp v40, v10 row_ror:5 row_mask:0xf bank_mask:0xf

begin quad_perm, 2, 1
  v_mov_b32 v40, v11
  v_mov_b32_dpp v40, v10 quad_perm:[1,0,3,2] row_mask:0x5 bank_mask:0xf
end quad_perm, 1

begin row_bcast, 1, 1
  v_mov_b32 v40, v10
  v_add_u32_dpp v40, v10, v10 row_bcast:15 row_mask:0xa bank_mask:0xf
end row_bcast, 1

begin permlane32, 2, 2
  v_mov_b32 v40, v10
  v_mov_b32 v41, v11
  s_nop 1
  v_permlane32_swap_b32 v40, v41
end permlane32, 2

begin permlane16, 2, 2
  v_mov_b32 v40, v10
  v_mov_b32 v41, v11
  s_nop 1
  v_permlane16_swap_b32 v40, v41
end permlane16, 2

begin readlane, 1, 1
  v_readlane_b32 s10, v10, 37
  v_mov_b32 v40, s10
end readlane, 1

begin mbcnt, 1, 1
  v_cmp_lt_i32 vcc, 0, v10
  v_mbcnt_lo_u32_b32 v40, vcc_lo, 0
  v_mbcnt_hi_u32_b32 v40, vcc_hi, v40
end mbcnt, 1
unit bpermute, 2, 1, ds_bpermute_b32 v40, v10, v11
unit swizzle, 1, 1, ds_swizzle_b32 v40, v10 offset:0x401f
unit mfma_16x16x32_bf16, 12, 4, v_mfma_f32_16x16x32_bf16 v[40:43], v[10:13], v[14:17], v[18:21]
unit mfma_32x32x16_bf16, 24, 16, v_mfma_f32_32x32x16_bf16 v[40:55], v[10:13], v[14:17], v[18:33]
unit mfma_16x16x32_f16, 12, 4, v_mfma_f32_16x16x32_f16 v[40:43], v[10:13], v[14:17], v[18:21]
unit mfma_16x16x32_fp8, 8, 4, v_mfma_f32_16x16x32_fp8_fp8 v[40:43], v[10:11], v[12:13], v[14:17]

.macro lds_address bytes  // v3 = lane * bytes
  v_mul_u32_u24 v3, \bytes, v0
.endm

begin lds_read2, 4, 4
  lds_address 16
  ds_write_b128 v3, v[10:13]
  s_waitcnt lgkmcnt(0)
  v_xor_b32 v3, 16, v3
  ds_read2_b64 v[40:43], v3 offset0:1 offset1:0
end lds_read2, 4

// The two halves of 8 bytes are exchanged, by the forms of two addresses.
begin lds_pairs, 2, 2
  lds_address 8
  ds_write2_b32 v3, v10, v11 offset0:1 offset1:0
  s_waitcnt lgkmcnt(0)
  ds_read_b64 v[40:41], v3
end lds_pairs, 2

begin lds_pairs_back, 2, 2
  lds_address 8
  ds_write_b64 v3, v[10:11]
  s_waitcnt lgkmcnt(0)
  ds_read2_b32 v[40:41], v3 offset0:1 offset1:0
end lds_pairs_back, 2

begin lds_write2_b64, 4, 4
  lds_address 16
  ds_write2_b64 v3, v[10:11], v[12:13] offset0:1 offset1:0
  s_waitcnt lgkmcnt(0)
  ds_read_b128 v[40:43], v3
end lds_write2_b64, 4

begin lds_write2st64, 2, 2
  lds_address 4
  ds_write2st64_b32 v3, v10, v11 offset0:1 offset1:3
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v40, v3 offset:256
  ds_read_b32 v41, v3 offset:768
end lds_write2st64, 2

begin lds_halves, 1, 1
  lds_address 4
  v_lshrrev_b32 v4, 16, v10
  ds_write_b16 v3, v4
  ds_write_b16 v3, v10 offset:2
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v40, v3
end lds_halves, 1

begin narrow_memory, 1, 2
  v_lshlrev_b32 v3, 2, v0
  global_load_ubyte v20, v3, s[4:5] offset:3
  global_load_ushort v21, v3, s[4:5] offset:1
  s_waitcnt vmcnt(0)
  v_mov_b32 v40, v20
  v_mov_b32 v41, v21
  v_lshlrev_b32 v3, 3, v0
  global_store_dwordx2 v3, v[20:21], s[6:7]
end narrow_memory, 2

begin wide_memory, 4, 4
  v_lshlrev_b32 v3, 4, v0
  global_load_dwordx4 v[20:23], v3, s[4:5]
  s_waitcnt vmcnt(0)
  global_store_dwordx4 v3, v[20:23], s[6:7]
  global_load_dwordx2 v[40:41], v3, s[4:5] offset:8
  global_load_dwordx2 v[42:43], v3, s[4:5]
end wide_memory, 4

begin lds_tr_b16, 2, 2
  lds_address 8
  ds_write_b64 v3, v[10:11]
  s_waitcnt lgkmcnt(0)
  ds_read_b64_tr_b16 v[40:41], v3
end lds_tr_b16, 2

begin lds_tr_b8, 2, 2
  lds_address 8
  ds_write_b64 v3, v[10:11]
  s_waitcnt lgkmcnt(0)
  ds_read_b64_tr_b8 v[40:41], v3
end lds_tr_b8, 2
// Lane l asks for the 16 bytes of lane 63 - l; they land at 256 + 16 l.

begin load_to_lds, 4, 4
  v_sub_u32 v4, 63, v0
  v_lshlrev_b32 v4, 4, v4
  s_movk_i32 m0, 240
  s_nop 0
  global_load_lds_dwordx4 v4, s[4:5] offset:0
  s_waitcnt vmcnt(0)
  lds_address 16
  ds_read_b128 v[40:43], v3 offset:240
end load_to_lds, 4
// A buffer of 200 bytes: what lies beyond reads as zero.

begin buffer_load, 1, 1
  s_mov_b32 s8, s4
  s_mov_b32 s9, s5
  s_movk_i32 s10, 200
  s_mov_b32 s11, 0x27000
  v_lshlrev_b32 v3, 2, v0
  buffer_load_dword v40, v3, s[8:11], 0 offen
end buffer_load, 1


begin bad_wait, 1, 1
  global_load_dword v40, v1, s[4:5]
  v_add_u32 v40, v40, v40
end bad_wait, 1

begin bad_lds_wait, 1, 1
  lds_address 4
  ds_read_b32 v40, v3
  v_mov_b32 v41, v40
end bad_lds_wait, 1

begin bad_scalar_wait, 1, 1
  s_load_dword s10, s[4:5], 0x0
  v_mov_b32 v40, s10
end bad_scalar_wait, 1
unit bad_address, 1, 1, global_load_dword v40, v1, s[4:5] offset:-4

begin bad_lds_address, 1, 1
  v_mov_b32 v3, 0x4000
  ds_write_b32 v3, v10
end bad_lds_address, 1

begin bad_mfma_use, 12, 4
  v_mfma_f32_16x16x32_bf16 v[40:43], v[10:13], v[14:17], v[18:21]
  s_nop 6
  v_add_f32 v40, v40, v40
end bad_mfma_use, 4

begin good_mfma_use, 12, 4
  v_mfma_f32_16x16x32_bf16 v[40:43], v[10:13], v[14:17], v[18:21]
  s_nop 7
  v_add_f32 v40, v40, v40
end good_mfma_use, 4

begin good_mfma_chain, 12, 4
  v_mfma_f32_16x16x32_bf16 v[40:43], v[10:13], v[14:17], v[18:21]
  v_mfma_f32_16x16x32_bf16 v[40:43], v[10:13], v[14:17], v[40:43]
end good_mfma_chain, 4
begin bad_scalar_address, 1, 1
  v_mov_b32 v3, s4
  s_mov_b32 s11, s5
  v_readfirstlane_b32 s10, v3
  s_nop 3
  global_load_dword v40, v1, s[10:11]
  s_waitcnt vmcnt(0)
end bad_scalar_address, 1

begin good_scalar_address, 1, 1
  v_mov_b32 v3, s4
  s_mov_b32 s11, s5
  v_readfirstlane_b32 s10, v3
  s_nop 4
  global_load_dword v40, v1, s[10:11]
  s_waitcnt vmcnt(0)
end good_scalar_address, 1
unit bad_unknown, 1, 1, v_sin_f32 v40, v10
// Two waves: both write dword 0 with their own value; or one reads what the other wrote, without a barrier.

begin bad_race, 1, 1
  v_mov_b32 v3, 0
  v_lshrrev_b32 v4, 6, v0
  ds_write_b32 v3, v4
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v40, v4
end bad_race, 1

begin bad_race_read, 1, 1
  v_lshlrev_b32 v3, 2, v0
  ds_write_b32 v3, v10
  v_xor_b32 v4, 0x100, v3
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v40, v4
end bad_race_read, 1

begin good_exchange, 1, 1
  v_lshlrev_b32 v3, 2, v0
  ds_write_b32 v3, v10
  v_xor_b32 v4, 0x100, v3
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v40, v4
end good_exchange, 1

begin bad_direct_load, 4, 1
  s_mov_b32 m0, 0
  v_lshlrev_b32 v4, 4, v0
  global_load_lds_dwordx4 v4, s[4:5]
  lds_address 4
  ds_read_b32 v40, v3
end bad_direct_load, 1

begin banks, 1, 1
  lds_address 256
  ds_write_b32 v3, v10
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v40, v10
end banks, 1

// Copies a dword a lane. Its two pointers are preloaded into s[2:5]; firmware that does not do so enters 256 bytes earlier.
  .globl preloaded
  .p2align 8
  .type preloaded,@function
preloaded:
  s_load_dwordx2 s[2:3], s[0:1], 0x0
  s_load_dwordx2 s[4:5], s[0:1], 0x8
  s_waitcnt lgkmcnt(0)
  s_branch .Lpreloaded_body
  .p2align 8
.Lpreloaded_body:
  v_lshlrev_b32 v1, 2, v0
  global_load_dword v2, v1, s[2:3]
  s_waitcnt vmcnt(0)
  global_store_dword v1, v2, s[4:5]
  s_endpgm
.Lpreloaded_end:
  .size preloaded, .Lpreloaded_end-preloaded
  .rodata
  .p2align 6
  .amdhsa_kernel preloaded
    .amdhsa_kernarg_size 16
    .amdhsa_user_sgpr_kernarg_segment_ptr 1
    .amdhsa_user_sgpr_kernarg_preload_length 4
    .amdhsa_next_free_vgpr 8
    .amdhsa_next_free_sgpr 16
    .amdhsa_accum_offset 8
  .end_amdhsa_kernel
  .text
